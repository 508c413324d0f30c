#include "array_programs.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>

#include "../support/net_of.h"
#include "sluice/sluice.h"

namespace sluice::testing {
namespace {

constexpr std::size_t kArrays = 12;  ///< of a program at one time
constexpr std::int64_t kRows = 4, kColumns = 6, kCount = kRows * kColumns;
constexpr std::int64_t kBlock = 3 * kCount / 2;  ///< elements of the memory that imports share

struct Kind {
  StepKind kind;
  const char* name;
  int weight;
};
constexpr Kind kKinds[] = {
    {StepKind::make, "make", 4},
    {StepKind::unary, "unary", 5},
    {StepKind::binary, "binary", 8},
    {StepKind::reduce, "reduce", 3},
    {StepKind::join, "join", 2},
    {StepKind::view, "view", 7},
    {StepKind::update, "update in place", 10},
    {StepKind::fill, "fill", 6},
    {StepKind::assign, "assign", 6},
    {StepKind::overlap, "overlap", 3},
    {StepKind::snapshot, "snapshot", 6},
    {StepKind::drop, "drop", 4},
    {StepKind::transfer, "transfer", 6},
    {StepKind::foreign, "import", 3},
    {StepKind::parts, "parts", 3},
    {StepKind::own_op, "own op", 4},
    {StepKind::borrow, "borrow", 2},
    {StepKind::fail_torn, "fail, torn", 1},
    {StepKind::fail_intact, "fail, intact", 2},
    {StepKind::recover, "recover", 4},
    {StepKind::forward, "forward", 5},
    {StepKind::loss, "loss", 4},
    {StepKind::backward, "backward", 4},
    {StepKind::gradient, "gradient", 2},
    {StepKind::second_gradient, "second gradient", 1},
    {StepKind::leaf_update, "leaf update", 2},
    {StepKind::step, "optimiser step", 2},
    {StepKind::good_step, "guarded step", 2},
    {StepKind::sgd_recover, "optimiser recover", 1},
    {StepKind::item, "item", 3},
    {StepKind::read, "read", 3},
};
static_assert(std::size(kKinds) == kStepKinds);

/// Delays of bodies, so that schedules differ: no more than some microseconds.
void spin(std::uint32_t how_long) {
  volatile std::uint32_t turns = 0;
  for (std::uint32_t i = 0; i < how_long % 4096; ++i) turns = i;
  static_cast<void>(turns);
}

/// What a run has at hand: everything depends on the program alone, never on elements or times.
class Run {
 public:
  Run(const ArrayProgram& program, Engine& engine, std::span<const Device> devices, ArrayPush::Body own_op_on_gpu)
      : program_(program),
        engine_(engine),
        devices_(devices),
        own_op_on_gpu_(own_op_on_gpu),
        random_(program.seed),
        block_(std::make_shared<std::vector<float>>(kBlock, 1.0F)) {
    for (std::size_t i = 0; i < 3; ++i) {
      const DeviceScope on(device(static_cast<std::uint32_t>(i)));
      leaves_.push_back(full({kColumns}, 0.5 + static_cast<double>(i)).with_grad());
      arrays_.push_back(arange(0, kCount, 1, DType::f32).reshape({kRows, kColumns}));
    }
    net_ = test::net_of(leaves_);
    sgd_.emplace(net_, nn::Sgd{.lr = 0.01, .momentum = 0.5});
    const std::int64_t sizes[] = {1, 2, 1};
    parts_ = partitioned(sizes, {kColumns}, DType::f32, device(1));
    parts_.whole.fill(2);
  }

  std::vector<std::string> all(Coverage& coverage) {
    for (std::size_t i = 0; i < program_.steps.size(); ++i) {
      const ProgramStep& s = program_.steps[i];
      const auto kind = static_cast<std::size_t>(s.kind);
      ++coverage.run[kind];
      at_ = i;
      failed_ = false;
      try {
        take(s);
      } catch (const ArrayError& e) {
        tell(e);
      } catch (const Error& e) {
        tell(e);
      }
      coverage.errors[kind] += failed_;
    }
    for (const NDArray& x : arrays_) see([&x] { return bytes_of(x); });
    for (const NDArray& w : leaves_) {
      see([&w] { return bytes_of(w); });
      if (const NDArray g = w.grad(); g.defined()) see([&g] { return bytes_of(g); });
    }
    see([this] { return bytes_of(parts_.whole); });
    finish();
    return std::move(seen_);
  }

 private:
  Device device(std::uint32_t n) const { return devices_[n % devices_.size()]; }
  Device host(std::uint32_t n) const { return device(n).kind == DeviceKind::cpu ? device(n) : devices_[0]; }
  NDArray& array(std::uint32_t n) { return arrays_[n % arrays_.size()]; }
  const NDArray& leaf(std::uint32_t n) const { return leaves_[n % leaves_.size()]; }
  static std::string bytes_of(const NDArray& x) {
    const std::vector<std::byte> bytes = x.to_bytes();
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  void put(NDArray x, std::uint32_t n) {
    if (arrays_.size() < kArrays) {
      arrays_.push_back(std::move(x));
    } else {
      array(n) = std::move(x);
    }
  }
  void tell(const std::exception& e) {
    failed_ = true;
    seen_.push_back("step " + std::to_string(at_) + ": " + e.what());
  }
  template <class F>
  bool see(F&& f) {
    try {
      seen_.push_back(f());
      return true;
    } catch (const Error& e) {
      tell(e);
      return false;
    }
  }
  /// The first n elements in a row, on a device.
  static NDArray row(const NDArray& x, std::int64_t n, Device on) { return x.reshape({-1}).narrow(0, 0, n).to(on); }
  /// The other operand of an operation with x: as it is where it fits.
  static NDArray beside(const NDArray& x, const NDArray& y) {
    if (x.shape() == y.shape()) return y.to(x.device());
    if (y.count() >= x.count()) return row(y, x.count(), x.device()).reshape(x.shape());
    return row(y, 1, x.device()).broadcast_to(x.shape());
  }
  /// A window of rows, columns or elements.
  static NDArray window(const NDArray& x, std::uint32_t n) {
    if (x.rank() == 0) return x;
    const int axis = static_cast<int>(n) % x.rank();
    const std::int64_t size = x.size(axis), begin = n / 2 % size, end = begin + 1 + n / 8 % (size - begin);
    return x.narrow(axis, begin, end);
  }

  void take(const ProgramStep& s) {
    switch (s.kind) {
      case StepKind::make:
        return make(s);
      case StepKind::unary:
        return unary(s);
      case StepKind::binary:
        return binary(s);
      case StepKind::reduce:
        return reduce(s);
      case StepKind::join: {
        const NDArray &x = array(s.a), &y = array(s.b);
        const std::int64_t n = std::min<std::int64_t>(x.count(), kCount / 2),
                           m = std::min<std::int64_t>(y.count(), kCount / 2);
        const NDArray both[] = {row(x, n, x.device()), row(y, m, x.device())};
        return put(concat(both, 0), s.d);
      }
      case StepKind::view:
        return view(s);
      case StepKind::update:
        return update(s);
      case StepKind::fill: {
        const NDArray x = s.b % 2 ? array(s.a) : window(array(s.a), s.c);
        return x.fill(static_cast<double>(s.d % 16) / 4);
      }
      case StepKind::assign: {
        const NDArray to = s.c % 4 ? window(array(s.a), s.c) : array(s.a);
        return to.assign(beside(to, s.d % 2 ? window(array(s.b), s.d) : array(s.b)));
      }
      case StepKind::overlap: {
        NDArray x = array(s.a);
        if (x.rank() == 2 && s.b % 2 && x.size(0) == x.size(1)) return x.assign(x.transpose());
        const std::int64_t n = x.rank() ? x.size(0) : 0;
        if (n < 2) return;
        NDArray high = x.narrow(0, 1, n), low = x.narrow(0, 0, n - 1);
        if (s.c % 2) {
          high += low;
        } else {
          low.assign(high);
        }
        return;
      }
      case StepKind::snapshot:
        return put(array(s.a).detach(), s.d);
      case StepKind::drop:
        if (arrays_.size() > 3) arrays_.erase(arrays_.begin() + static_cast<std::ptrdiff_t>(s.a % arrays_.size()));
        return;
      case StepKind::transfer:
        return put(array(s.a).to(device(s.b)), s.d);
      case StepKind::foreign: {
        const std::int64_t begin = s.a % (kBlock - 1), end = begin + 1 + s.b % (kBlock - begin);
        return put(from_memory(block_->data() + begin, block_, {end - begin}, DType::f32, host(s.c)), s.d);
      }
      case StepKind::parts: {
        if (s.a % 4 == 0) {
          parts_.whole *= static_cast<double>(s.c % 8) / 4;
        } else {
          NDArray& part = parts_.parts[s.a % parts_.parts.size()];
          part += beside(part, array(s.b));
        }
        if (s.d % 3 == 0) put(s.d % 2 ? parts_.whole.detach() : parts_.parts[s.c % parts_.parts.size()], s.d);
        return;
      }
      case StepKind::own_op:
        return own_op(s);
      case StepKind::borrow: {
        const NDArray here = array(s.a).to(host(array(s.a).device().index));
        const NDArray x = here.is_contiguous() ? here : here.copy();
        if (x.dtype() != DType::f32) return;
        auto elements = x.borrow<float>();
        for (float& element : elements) element = element * 0.5F + static_cast<float>(s.b % 4);
        return;
      }
      case StepKind::fail_torn:
      case StepKind::fail_intact:
        return fail(s);
      case StepKind::recover: {
        const NDArray& x = s.b % 4 ? array(s.a) : leaf(s.a);
        if (program_.late_errors) {
          const NoGrad none;
          x.fill(0.75);
        } else {
          engine_.recover(x);
        }
        return;
      }
      case StepKind::forward: {
        const NDArray& w = leaf(s.a);
        const NDArray x = beside(w, array(s.b));
        return put(s.c % 3 == 0 ? w * x : s.c % 3 == 1 ? tanh(w + x) : sum(x * w) + w, s.d);
      }
      case StepKind::loss: {
        const NDArray& w = leaf(s.a);
        const NDArray& x = array(s.b);
        if (losses_.size() > 3) losses_.erase(losses_.begin());
        losses_.push_back(x.requires_grad() && s.c % 4 ? sum(square(x)) : sum(square(beside(w, x) * w)));
        return;
      }
      case StepKind::backward: {
        if (losses_.empty()) return;
        const std::size_t i = s.a % losses_.size();
        const NDArray loss = losses_[i];
        if (s.b % 4) losses_.erase(losses_.begin() + static_cast<std::ptrdiff_t>(i));
        return loss.backward({.retain = s.b % 4 == 0});
      }
      case StepKind::gradient:
        if (const NDArray g = leaf(s.a).grad(); g.defined()) put(g, s.d);
        return;
      case StepKind::second_gradient: {
        const NDArray& w = leaf(s.a);
        const NDArray loss = sum(square(w) * w * beside(w, array(s.b)));
        const std::vector<NDArray> first = grad(loss, std::span(&w, 1), {.create_graph = true});
        return put(grad(sum(first[0]), std::span(&w, 1))[0], s.d);
      }
      case StepKind::leaf_update: {
        const NoGrad none;
        NDArray w = s.c % 2 ? leaf(s.a) : window(leaf(s.a), s.c);
        w += beside(w, array(s.b)) * 0.125F;
        return;
      }
      case StepKind::step:
        return sgd_->step();
      case StepKind::good_step:
        return good_step(s);
      case StepKind::sgd_recover:
        return sgd_->recover();
      case StepKind::item:
        see([&] {
          const float value = window(array(s.a), s.b).reshape({-1})(0).item<float>();
          return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
        });
        return;
      case StepKind::read:
        see([&] { return bytes_of(array(s.a)); });
        return;
    }
  }

  void make(const ProgramStep& s) {
    const DeviceScope on(device(s.a));
    const Dims shape = s.c % 4 == 0 ? Dims{kCount} : s.c % 4 == 1 ? Dims{kColumns, kColumns} : Dims{kRows, kColumns};
    if (s.b % 3 == 0) return put(full(shape, static_cast<double>(s.c % 8) - 3), s.d);
    if (s.b % 3 == 1) return put(arange(0, shape.count(), 1, DType::f32).reshape(shape), s.d);
    put(uniform(shape, random_, -1, 1), s.d);
  }

  void unary(const ProgramStep& s) {
    const NDArray& x = array(s.a);
    switch (s.b % 6) {
      case 0:
        return put(tanh(x), s.d);
      case 1:
        return put(abs(x), s.d);
      case 2:
        return put(-x, s.d);
      case 3:
        return put(relu(x), s.d);
      case 4:
        return put(x.copy(), s.d);
      default:
        return put(sigmoid(x), s.d);
    }
  }

  void binary(const ProgramStep& s) {
    const NDArray x = array(s.a), y = beside(x, array(s.b));
    switch (s.c % 5) {
      case 0:
        return put(x + y, s.d);
      case 1:
        return put(x - y, s.d);
      case 2:
        return put(x * y, s.d);
      case 3:
        return put(maximum(x, y), s.d);
      default:
        return put(where(less(x, y), x, y), s.d);
    }
  }

  void reduce(const ProgramStep& s) {
    const NDArray& x = array(s.a);
    if (x.rank() < 2 || s.b % 4 == 0) return put(sum(x) * full({kColumns}, 0.25F).to(x.device()), s.d);
    if (s.b % 4 == 1) return put(max(x, {0}), s.d);
    if (s.b % 4 == 2) return put(softmax(x), s.d);
    put(matmul(x, x, {.transpose_b = true}), s.d);
  }

  void view(const ProgramStep& s) {
    const NDArray& x = array(s.a);
    switch (s.b % 5) {
      case 0:
      case 1:
        return put(window(x, s.c), s.d);
      case 2:
        return put(x.transpose(), s.d);
      case 3:
        return put(x.is_contiguous() ? x.flatten() : x.unsqueeze(0), s.d);
      default:
        return put(x.rank() ? x(slice_from(0, 2)) : x, s.d);
    }
  }

  void update(const ProgramStep& s) {
    NDArray x = s.c % 4 ? array(s.a) : window(array(s.a), s.c);
    switch (s.d % 6) {
      case 0:
        x += static_cast<double>(s.b % 8) / 8;
        return;
      case 1:
        x *= static_cast<double>(s.b % 8) / 8;
        return;
      case 2:
        x *= beside(x, array(s.b));
        return;
      case 3:
        x -= beside(x, array(s.b));
        return;
      default:
        x += beside(x, array(s.b));
        return;
    }
  }

  void own_op(const ProgramStep& s) {
    const NDArray &x = array(s.a), &y = array(s.b);
    const NDArray first = x.is_contiguous() ? x : x.copy(), second = y.to(x.device()).contiguous();
    const NDArray sums = empty({8}, DType::f32, x.device());
    NDArray target = window(array(s.c), s.d);
    if (target.device() != x.device() || !target.is_contiguous()) target = empty({kColumns}, DType::f32, x.device());
    if (x.device().kind == DeviceKind::gpu) {
      const NDArray* const inputs[] = {&first, &second};
      const NDArray outputs[] = {sums, target};
      ArrayPush push;
      push.body = own_op_on_gpu_;
      push.inputs = inputs;
      push.outputs = outputs;
      push.issues = push.opaque = true;
      push.options.name = "own op";
      push.where = std::source_location::current();
      push_arrays(push);
      return put(sums, s.d);
    }
    push_op(
        [delay = s.d](ArrayContext& c) {
          spin(delay);
          float total[2] = {0, 0};
          for (int k = 0; k < 2; ++k) {
            for (std::int64_t i = 0; i < c.input(k).count(); ++i) total[k] += c.input(k).as<float>()[i];
          }
          std::fill_n(c.output(0).as<float>(), c.output(0).count(), total[0]);
          std::fill_n(c.output(1).as<float>(), c.output(1).count(), total[1]);
        },
        {first, second}, {sums, target}, {.name = "own op"});
    put(sums, s.d);
  }

  void fail(const ProgramStep& s) {
    const bool torn = s.kind == StepKind::fail_torn;
    const NDArray target = s.b % 3 ? array(s.a) : s.b % 2 ? leaf(s.a) : window(array(s.a), s.c);
    ArrayPush push;
    struct What {
      std::string message;
      bool torn;
      std::uint32_t delay;
    };
    const Attributes closure(What{"by step " + std::to_string(at_), torn, s.d});
    push.attributes = &closure;
    push.body = [](ArrayContext& c) {
      const What& what = c.attributes<What>();
      spin(what.delay);
      if (!what.torn) c.engine_context().wrote_nothing();
      throw std::runtime_error(what.message);
    };
    push.outputs = std::span(&target, 1);
    if (!torn) push.updates = Updates::only(0);
    push.issues = !program_.late_errors || target.device().kind == DeviceKind::gpu;
    push.options.name = torn ? "torn" : "intact";
    push_arrays(push);
  }

  void good_step(const ProgramStep& s) {
    try {
      const NDArray& w = leaf(s.a);
      const NDArray loss = sum(square(w * beside(w, array(s.b)) - 0.5F));
      loss.backward();
      sgd_->step();
      const float value = loss.item<float>();
      seen_.emplace_back(reinterpret_cast<const char*>(&value), sizeof(value));
    } catch (const Error& e) {
      tell(e);
      sgd_->recover();
    }
  }

  /// What is left when all arrays are gone: errors of ops that wrote nothing, and the imports' memory.
  void finish() {
    arrays_.clear();
    losses_.clear();
    leaves_.clear();
    sgd_.reset();
    net_.clear();
    parts_ = {};
    see([this] {
      engine_.wait_all();
      return std::string("all");
    });
    engine_.clear_errors();
    seen_.emplace_back(reinterpret_cast<const char*>(block_->data()), block_->size() * sizeof(float));
  }

  const ArrayProgram& program_;
  Engine& engine_;
  std::span<const Device> devices_;
  const ArrayPush::Body own_op_on_gpu_;
  RandomStream random_;
  std::shared_ptr<std::vector<float>> block_;
  std::vector<NDArray> arrays_, leaves_, losses_;
  std::vector<nn::Parameter> net_;
  std::optional<nn::Optimizer> sgd_;
  Partitioned parts_;
  std::size_t at_ = 0;
  bool failed_ = false;
  std::vector<std::string> seen_;
};

/// New arrays belong to an engine while it lives.
struct DefaultEngine {
  explicit DefaultEngine(Engine& engine) { set_default_engine(&engine); }
  ~DefaultEngine() { set_default_engine(nullptr); }
};

}  // namespace

const char* name_of(StepKind kind) { return kKinds[static_cast<std::size_t>(kind)].name; }

ArrayProgram make_array_program(std::uint64_t seed, const ProgramOptions& options) {
  std::mt19937_64 random(seed);
  const auto number = [&random] { return static_cast<std::uint32_t>(random() >> 33U); };
  std::vector<StepKind> drawn;
  for (const Kind& k : kKinds) {
    const bool steps = k.kind == StepKind::step || k.kind == StepKind::good_step || k.kind == StepKind::sgd_recover;
    if (options.late_errors && steps) continue;
    drawn.insert(drawn.end(), static_cast<std::size_t>(k.weight), k.kind);
  }
  ArrayProgram program{seed, options.late_errors, {}};
  for (int i = 0; i < options.steps; ++i) {
    const StepKind kind = drawn[number() % drawn.size()];
    program.steps.push_back({kind, number(), number(), number(), number()});
  }
  return program;
}

void Coverage::add(const Coverage& other) {
  for (std::size_t k = 0; k < run.size(); ++k) {
    run[k] += other.run[k];
    errors[k] += other.errors[k];
  }
}

std::string Coverage::table() const {
  std::string text = "step                   times    errors\n";
  for (std::size_t k = 0; k < run.size(); ++k) {
    char line[80];
    std::snprintf(line, sizeof(line), "%-18s %9llu %9llu\n", kKinds[k].name, static_cast<unsigned long long>(run[k]),
                  static_cast<unsigned long long>(errors[k]));
    text += line;
  }
  return text;
}

std::vector<std::string> run_array_program(const ArrayProgram& program, Engine& engine, std::span<const Device> devices,
                                           Coverage* coverage, ArrayPush::Body own_op_on_gpu) {
  const DefaultEngine arrays_belong_to(engine);
  Coverage own;
  return Run(program, engine, devices, own_op_on_gpu).all(coverage ? *coverage : own);
}

}  // namespace sluice::testing
