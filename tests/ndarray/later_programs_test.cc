// Random programs of operations that answer late, fail, are dropped, or see poison, against a model that knows values
// and poison and runs one operation after the other.
#include <gtest/gtest.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <random>
#include <thread>

#include "../engine/slice.h"
#include "ndarray_test_support.h"

namespace sluice::testing {
namespace {

constexpr int kArrays = 4, kElements = 6, kSteps = 14;

struct Window {
  int array = 0;
  std::int64_t begin = 0, count = kElements;
  NDArray of(const std::vector<NDArray>& arrays) const {
    const NDArray& x = arrays[static_cast<std::size_t>(array)];
    return count == kElements ? x : x.narrow(0, begin, begin + count);
  }
};

enum class Ending : std::uint8_t { done, fails, fails_intact, passes_on, dropped, throws, throws_intact };

struct Step {
  enum Kind : std::uint8_t { own, add, snapshot, recover } kind = own;
  std::vector<Window> inputs, outputs;
  OnPoison on_poison = OnPoison::skip;
  Ending ending = Ending::done;
  bool later = true;
  int number = 0;
};

/// The names live as long as every engine.
const char* name_of(int step) {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (int i = 0; i < kSteps; ++i) all.push_back("step " + std::to_string(i));
    return all;
  }();
  return names[static_cast<std::size_t>(step)].c_str();
}

std::vector<Step> make_program(std::uint32_t seed) {
  std::mt19937 draw(seed);
  const auto below = [&](int n) { return static_cast<int>(draw() % static_cast<unsigned>(n)); };
  const auto window = [&](int array) {
    Window w{array};
    if (below(2) == 0) return w;
    w.begin = below(kElements - 1);
    w.count = 1 + below(kElements - static_cast<int>(w.begin) - 1);
    return w;
  };
  std::vector<Step> program;
  for (int i = 0; i < kSteps; ++i) {
    Step s;
    s.number = i;
    const int what = below(12);
    s.kind = what < 8 ? Step::own : what < 9 ? Step::add : what < 11 ? Step::snapshot : Step::recover;
    if (s.kind != Step::own) {
      s.inputs = {{below(kArrays)}};
      s.outputs = {{below(kArrays)}};
    } else {
      for (int k = below(3); k > 0; --k) s.inputs.push_back(window(below(kArrays)));
      const int first = below(kArrays);
      for (int k = s.inputs.empty() ? 0 : below(2); k < 2; ++k) s.outputs.push_back(window((first + k) % kArrays));
      const int sees = below(4);
      s.on_poison = sees == 0 ? OnPoison::run : sees == 1 ? OnPoison::always : OnPoison::skip;
      if (below(3) == 0) s.ending = static_cast<Ending>(1 + below(6));
      s.later = below(4) != 0 || s.ending == Ending::dropped;
    }
    program.push_back(std::move(s));
  }
  return program;
}

/// What a body makes of what it sees; errors count by their names.
template <class Get, class Root, class Set>
void compute(const Step& s, Get&& get, Root&& root, Set&& set) {
  std::int64_t sum = 7 * s.number + 1;
  for (std::size_t i = 0; i < s.inputs.size(); ++i) {
    const std::string error = root(i);
    for (const char c : error) sum += c * static_cast<std::int64_t>(i + 1);
    for (std::int64_t k = 0; error.empty() && k < s.inputs[i].count; ++k)
      sum = sum * 3 + static_cast<std::int64_t>(get(i, k));
    sum %= 65536;
  }
  for (std::size_t o = 0; o < s.outputs.size(); ++o) {
    if (!root(s.inputs.size() + o).empty()) continue;
    for (std::int64_t k = 0; k < s.outputs[o].count; ++k)
      set(o, k, static_cast<float>((sum + 31 * static_cast<std::int64_t>(o) + k) % 65536));
  }
}

/// For whoever looks at a failure.
std::string text_of(const std::vector<Step>& program) {
  constexpr const char* kinds[] = {"own", "add", "snapshot", "recover"};
  constexpr const char* endings[] = {"", "fails", "fails intact", "passes on", "dropped", "throws", "throws intact"};
  std::string text;
  for (const Step& s : program) {
    text += "\n" + std::to_string(s.number) + " " + kinds[s.kind];
    const auto windows = [&](const char* what, const std::vector<Window>& all) {
      for (const Window& w : all)
        text += std::string(what) + std::to_string(w.array) + "[" + std::to_string(w.begin) + "+" +
                std::to_string(w.count) + "]";
    };
    windows(" reads ", s.inputs);
    windows(" writes ", s.outputs);
    if (s.on_poison != OnPoison::skip) text += s.on_poison == OnPoison::run ? " run" : " always";
    text += std::string(" ") + endings[static_cast<int>(s.ending)] + (s.later ? " later" : "");
  }
  return text;
}

// ---- the model

struct Value {
  std::array<float, kElements> elements{};
  enum : std::uint8_t { good, intact, torn } state = good;
  std::string root;
  std::string text() const {
    if (state != good) return "poisoned by " + root;
    std::string all;
    for (const float x : elements) all += std::to_string(static_cast<int>(x)) + " ";
    return all;
  }
};

struct Model {
  std::vector<std::shared_ptr<Value>> arrays, snapshots;

  Model() {
    for (int a = 0; a < kArrays; ++a) {
      arrays.push_back(std::make_shared<Value>());
      arrays.back()->elements.fill(static_cast<float>(a));
    }
  }
  std::shared_ptr<Value>& at(int a) { return arrays[static_cast<std::size_t>(a)]; }

  /// A write to a value that a snapshot holds is to a copy, which a poisoned value has none of.
  Value& written(int a) {
    std::shared_ptr<Value>& x = at(a);
    if (x.use_count() > 1) {
      x = std::make_shared<Value>(*x);
      if (x->state == Value::intact) x->state = Value::torn;
    }
    return *x;
  }

  void run(const Step& s) {
    if (s.kind == Step::snapshot) return snapshots.push_back(at(s.inputs[0].array));
    if (s.kind == Step::recover) {
      Value& x = *at(s.inputs[0].array);
      if (x.state == Value::intact) x.state = Value::good;
      return;
    }
    // As they are when the op begins; the copies of held values come before.
    for (const Window& w : s.outputs) written(w.array);
    std::vector<Value> before;
    for (const auto& x : arrays) before.push_back(*x);
    const auto old = [&](int a) -> const Value& { return before[static_cast<std::size_t>(a)]; };
    const auto root = [&](std::size_t i) {
      const Window& w = i < s.inputs.size() ? s.inputs[i] : s.outputs[i - s.inputs.size()];
      const bool counts = i < s.inputs.size() || w.count < kElements || s.kind == Step::add;
      return counts && old(w.array).state != Value::good ? old(w.array).root : std::string();
    };
    std::string first = s.kind == Step::add ? root(1) : "";  // y += x names y first
    for (std::size_t i = 0; i < s.inputs.size() + s.outputs.size(); ++i)
      if (first.empty()) first = root(i);
    const bool skipped = s.on_poison == OnPoison::skip && !first.empty();
    std::string error = skipped ? first : s.ending != Ending::done ? name_of(s.number) : "";
    if (!skipped && s.ending == Ending::passes_on && !first.empty()) error = first;
    const bool whole = skipped || s.ending == Ending::fails_intact || s.ending == Ending::throws_intact;
    if (error.empty()) {
      if (s.kind == Step::add) {
        for (std::size_t k = 0; k < kElements; ++k)
          at(s.outputs[0].array)->elements[k] += old(s.inputs[0].array).elements[k];
      } else {
        compute(
            s, [&](std::size_t i, std::int64_t k) { return old(s.inputs[i].array).elements[index(s.inputs[i], k)]; },
            root,
            [&](std::size_t o, std::int64_t k, float y) {
              at(s.outputs[o].array)->elements[index(s.outputs[o], k)] = y;
            });
      }
    }
    for (const Window& w : s.outputs) {
      Value& x = *at(w.array);
      if (!error.empty()) {
        x.state = whole && x.state != Value::torn ? Value::intact : Value::torn;
        x.root = error;
      } else if (w.count == kElements && s.kind == Step::own) {
        x.state = Value::good;
      }
    }
  }
  static std::size_t index(const Window& w, std::int64_t k) { return static_cast<std::size_t>(w.begin + k); }
};

// ---- the engine

/// Threads that answer, in an order of their own.
class Answerers {
 public:
  explicit Answerers(int threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this, i] { answer(static_cast<unsigned>(i)); });
  }
  ~Answerers() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    there_is_.notify_all();
    for (std::thread& t : threads_) t.join();
  }
  void push(std::function<void()> f) {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(std::move(f));
    }
    there_is_.notify_one();
  }

 private:
  void answer(unsigned seed) {
    std::mt19937 draw(seed);
    for (;;) {
      std::function<void()> f;
      {
        std::unique_lock lock(mutex_);
        there_is_.wait(lock, [this] { return ended_ || !waiting_.empty(); });
        if (waiting_.empty()) return;
        const auto at = waiting_.begin() + static_cast<std::ptrdiff_t>(draw() % waiting_.size());
        f = std::move(*at);
        waiting_.erase(at);
      }
      f();
    }
  }
  std::mutex mutex_;
  std::condition_variable there_is_;
  std::deque<std::function<void()>> waiting_;
  bool ended_ = false;
  std::vector<std::thread> threads_;
};

using Errors = std::vector<ErrorRef>;

/// The work and the answer of a body.
void act(const Step& s, const Errors& errors, ArrayCompletion& answer) {
  compute(
      s, [&](std::size_t i, std::int64_t k) { return answer.input(static_cast<int>(i)).as<float>()[k]; },
      [&](std::size_t i) { return errors[i] ? errors[i]->operation : std::string(); },
      [&](std::size_t o, std::int64_t k, float y) {
        // Who fails and leaves the old values writes nothing.
        if (s.ending != Ending::fails_intact) answer.output(static_cast<int>(o)).as<float>()[k] = y;
      });
  const auto error = std::make_exception_ptr(std::runtime_error("failed"));
  switch (s.ending) {
    case Ending::fails:
    case Ending::fails_intact:
      return answer.fail(error, s.ending == Ending::fails_intact);
    case Ending::passes_on:
      for (const ErrorRef& e : errors)
        if (e) return answer.pass_on(e);
      return answer.fail(error);
    case Ending::dropped:
      answer = ArrayCompletion();
      return;
    default:
      answer.done();
  }
}

void push(const Step& s, const std::vector<NDArray>& arrays, Answerers& answerers) {
  std::vector<NDArray> inputs, outputs;
  for (const Window& w : s.inputs) inputs.push_back(w.of(arrays));
  for (const Window& w : s.outputs) outputs.push_back(w.of(arrays));
  push_op(
      [&s, &answerers](ArrayContext& c, ArrayCompletion done) {
        Errors errors;
        for (int i = 0; i < c.inputs() + c.outputs(); ++i) {
          errors.push_back(c.error(i));
          const TensorView& view = i < c.inputs() ? c.input(i) : c.output(i - c.inputs());
          EXPECT_EQ(view.data == nullptr, errors.back() != nullptr);
        }
        if (s.ending == Ending::throws_intact) c.engine_context().wrote_nothing();
        if (s.ending >= Ending::throws) throw std::runtime_error("thrown");
        if (!s.later) return act(s, errors, done);
        auto held = std::make_shared<ArrayCompletion>(std::move(done));
        answerers.push([&s, errors, held] { act(s, errors, *held); });
      },
      inputs, outputs, {.name = name_of(s.number), .on_poison = s.on_poison});
}

std::string text_of(const NDArray& x) {
  try {
    std::string all;
    for (const float v : x.to_vector<float>()) all += std::to_string(static_cast<int>(v)) + " ";
    return all;
  } catch (const Error& e) {
    return "poisoned by " + e.root().operation;
  }
}

void check(std::uint32_t seed, EngineMode mode, Answerers& answerers) {
  const std::vector<Step> program = make_program(seed);
  SCOPED_TRACE("seed " + std::to_string(seed) + (mode == EngineMode::serial ? ", serial" : "") + text_of(program));
  TestEngine test(2, 1, mode);
  test.engine.on_unobserved_error([](const ErrorRoot&) {});
  const DeviceScope scope(cpu(0));
  std::vector<NDArray> arrays, snapshots;
  for (int a = 0; a < kArrays; ++a) arrays.push_back(full({kElements}, static_cast<float>(a)));
  Model model;
  for (const Step& s : program) {
    model.run(s);
    const auto array = [&](const Window& w) -> NDArray& { return arrays[static_cast<std::size_t>(w.array)]; };
    if (s.kind == Step::own) push(s, arrays, answerers);
    if (s.kind == Step::add) array(s.outputs[0]) += array(s.inputs[0]);
    if (s.kind == Step::snapshot) snapshots.push_back(array(s.inputs[0]).detach());
    if (s.kind == Step::recover) test.engine.recover(array(s.inputs[0]));
  }
  const auto compare = [&](const std::vector<NDArray>& got, const std::vector<std::shared_ptr<Value>>& want,
                           const char* what) {
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_EQ(text_of(got[i]), want[i]->text()) << what << " " << i;
  };
  compare(arrays, model.arrays, "array");
  compare(snapshots, model.snapshots, "snapshot");
  for (int a = 0; a < kArrays; ++a) {
    test.engine.recover(arrays[static_cast<std::size_t>(a)]);
    Step s;
    s.kind = Step::recover;
    s.inputs = {{a}};
    model.run(s);
  }
  compare(arrays, model.arrays, "recovered array");
}

TEST(LaterPrograms, EqualAModelOfValuesAndPoison) {
  Answerers answerers(2);
  const auto programs = static_cast<std::uint32_t>(slice(150, 1500, 10000));
  for (std::uint32_t seed = 1; seed <= programs && !HasFailure(); ++seed) {
    check(seed, seed % 5 == 0 ? EngineMode::serial : EngineMode::threaded, answerers);
  }
}

}  // namespace
}  // namespace sluice::testing
