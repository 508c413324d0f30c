#include "sluice/ndarray/anomaly.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "sluice/engine/detail/forks.h"
#include "sluice/engine/layer.h"
#include "sluice/ndarray/half.h"
#include "sluice/ndarray/push.h"
#include "sluice/ndarray/rerun.h"
#include "sluice/ndarray/user_names.h"

namespace sluice {

struct AnomalyScope::State : std::enable_shared_from_this<AnomalyScope::State> {
  AnomalyOptions options;
  std::atomic<std::uint64_t> pushes{0};
  bool asked = true;  ///< since the last push; of a scope
  /// SLUICE_ANOMALY: the state of all threads outside of scopes. What is found first is told at once, and ends the
  /// looks.
  bool everywhere = false;
  std::atomic<bool> told{false};

  std::mutex mutex;  ///< guards what follows
  /// Of each engine: the variable by which its looks follow one another, in the order of the pushes. While it is held
  /// it keeps what is left of an engine that is gone, so that no other engine is taken for it.
  struct Order {
    Engine* engine;
    Variable variable;
    std::size_t looks = 0;  ///< in flight; counted everywhere, where the variable goes with the last
  };
  std::vector<Order> orders;
  std::optional<Anomaly> first;

  /// Held by a look.
  struct Counted {
    std::shared_ptr<State> state;
    Variable variable;
    ~Counted() { state->one_less(std::move(variable)); }
  };
  /// The engine's variable, and what the look that is pushed with it holds: null in a scope.
  std::pair<Variable, std::shared_ptr<Counted>> order_in(const Array& array) {
    Variable variable;
    {
      const std::lock_guard lock(mutex);
      auto at = std::find_if(orders.begin(), orders.end(),
                             [&](const Order& known) { return known.variable.get()->core == &array.core(); });
      if (at == orders.end()) at = orders.insert(at, {&array.engine(), array.engine().variable("anomalies")});
      variable = at->variable;
      if (everywhere) ++at->looks;
    }
    if (!everywhere) return {variable, nullptr};
    return {variable, std::shared_ptr<Counted>(new Counted{shared_from_this(), variable})};
  }
  void one_less(Variable variable) {
    Variable dropped;  // outside of the lock
    const std::lock_guard lock(mutex);
    const auto at =
        std::find_if(orders.begin(), orders.end(), [&](const Order& known) { return known.variable == variable; });
    if (at == orders.end() || --at->looks > 0) return;
    dropped = std::move(at->variable);
    orders.erase(at);
  }
  bool looks() const { return (options.nan || options.inf) && !told.load(std::memory_order_relaxed); }
  void tell(Anomaly found) {
    const std::lock_guard lock(mutex);
    if (first && found.push >= first->push) return;
    first = std::move(found);
    if (!everywhere || told.exchange(true)) return;
    std::fprintf(stderr, "sluice: anomaly: %s\n", first->to_string().c_str());
  }
  void wait(const std::source_location& where) {
    asked = true;
    for (const Order& order : orders) order.engine->wait(order.variable, where);
  }
};

namespace {

using State = AnomalyScope::State;

constinit thread_local State* current = nullptr;
constinit thread_local const char* gradient_name = nullptr;

/// SLUICE_ANOMALY, read while the program starts: so that the flag of every thread is set from its beginning, and a
/// push tests no more than this flag.
struct FromEnvironment {
  State* state = nullptr;  ///< null: off. Lives as long as the program
  std::string wrong;       ///< a text that means nothing

  FromEnvironment() {
    const char* const text = std::getenv("SLUICE_ANOMALY");
    const std::string_view wanted = text ? text : "";
    if (wanted.empty() || wanted == "0") return;
    if (wanted != "1" && wanted != "nan") {
      wrong = wanted;
    } else {
      static auto* const made = new std::shared_ptr<State>(std::make_shared<State>());
      state = made->get();
      state->everywhere = true;
      state->options.inf = wanted == "1";
      static constinit detail::OverFork over_forks{.take = [] { return (*made)->mutex.try_lock(); },
                                                   .give_back = [] { (*made)->mutex.unlock(); }};
      detail::over_fork(over_forks);
    }
    detail::first_flags.fetch_or(kAnomalyFlag, std::memory_order_relaxed);
    current_scope().flags |= kAnomalyFlag;
  }
} const environment;

struct Found {
  Dims index;
  double value = 0;
};

template <class T>
double number(T x) {
  if constexpr (std::is_same_v<T, double>) return x;
  return static_cast<double>(static_cast<float>(x));
}

bool is_bad(double value, const AnomalyOptions& wanted) {
  return std::isfinite(value) ? false : std::isnan(value) ? wanted.nan : wanted.inf;
}

/// The first such element, in row-major order.
template <class T>
std::optional<Found> search(const TensorView& view, const AnomalyOptions& wanted) {
  const int rank = view.shape.rank();
  const std::int64_t columns = rank == 0 ? 1 : view.shape[rank - 1], step = rank == 0 ? 1 : view.strides[rank - 1];
  if (view.count() == 0) return {};
  Dims index;
  for (int i = 0; i < rank; ++i) index.push_back(0);
  const T* row = view.as<const T>();
  for (;;) {
    for (std::int64_t i = 0; i < columns; ++i) {
      const double value = number(row[i * step]);
      if (is_bad(value, wanted)) [[unlikely]] {
        if (rank > 0) index[rank - 1] = i;
        return Found{index, value};
      }
    }
    int axis = rank - 2;
    for (; axis >= 0; --axis) {
      row += view.strides[axis];
      if (++index[axis] < view.shape[axis]) break;
      row -= view.strides[axis] * view.shape[axis];
      index[axis] = 0;
    }
    if (axis < 0) return {};
  }
}

std::optional<Found> search(const TensorView& view, const AnomalyOptions& wanted) {
  switch (view.dtype) {
    case DType::f32:
      return search<float>(view, wanted);
    case DType::f64:
      return search<double>(view, wanted);
    case DType::f16:
      return search<Float16>(view, wanted);
    case DType::bf16:
      return search<BFloat16>(view, wanted);
    default:
      return {};
  }
}

/// What one push has read that was not finite. Its first look, before a write in place, is over before the second.
struct Read {
  int input = Anomaly::kNone;
  double value = 0;
};

/// What a look reads: result or input, and its number.
struct Window {
  NDArray array;
  bool result = false;
  int number = 0;
};

/// The body of a look: reads the windows in their order. Results are searched for what the scope wants, and where one
/// has it, the inputs for anything that is not finite. Before a write in place (`old`) only the latter.
struct ResultLook {
  std::shared_ptr<State> state;
  std::shared_ptr<Read> read;
  std::shared_ptr<State::Counted> counted;
  Anomaly about;
  std::vector<std::pair<bool, int>> windows;  ///< Window::result and number
  bool old = false;

  void operator()(ArrayContext& context) const {
    for (std::size_t i = 0; i < windows.size(); ++i) {
      const auto [result, number] = windows[i];
      if (!result || old) continue;
      if (const auto found = search(context.input(static_cast<int>(i)), state->options)) {
        read_inputs(context);
        Anomaly anomaly = about;
        anomaly.result = number;
        anomaly.dtype = context.input(static_cast<int>(i)).dtype;
        anomaly.shape = context.input(static_cast<int>(i)).shape;
        anomaly.index = found->index;
        anomaly.value = found->value;
        anomaly.input = read->input;
        anomaly.input_value = read->value;
        return state->tell(std::move(anomaly));
      }
    }
    if (old) read_inputs(context);
  }

  void read_inputs(ArrayContext& context) const {
    for (std::size_t i = 0; i < windows.size(); ++i) {
      const auto [result, number] = windows[i];
      if (result && !old) continue;
      if (read->input >= 0 && (result || number > read->input)) continue;  // an input before this one is known
      if (const auto found = search(context.input(static_cast<int>(i)), {})) {
        *read = {result ? Anomaly::kOldValue : number, found->value};
      }
    }
  }
};

bool can_be_bad(const NDArray& x) { return x.defined() && is_floating(x.dtype()) && x.count() > 0; }

/// Pushes a look as the library's own op: neither looked at, recorded nor noted. The windows are on one device.
void look_on_device(std::vector<Window> windows, ResultLook body, Ticket (*push)(const ArrayPush& given)) {
  const ScopeGuard guard;
  ScopeState& scope = current_scope();
  scope.flags = kNoGradFlag;
  scope.records = nullptr;
  scope.cancel.reset();
  const Ref<Array> array = windows[0].array.array();  // of the engine that all are of
  std::vector<const NDArray*> reads;
  for (Window& window : windows) {
    // A GPU's memory is out of the host's reach; simulated devices run the body themselves.
    if (window.array.device().kind == DeviceKind::gpu) window.array = window.array.to(cpu(0), body.about.where);
    body.windows.emplace_back(window.result, window.number);
    reads.push_back(&window.array);
  }
  std::tie(scope.sequence, body.counted) = body.state->order_in(*array);
  const Attributes closure(std::move(body));
  ArrayPush op;
  op.attributes = &closure;
  op.body = [](ArrayContext& context) { context.attributes<ResultLook>()(context); };
  op.inputs = reads;
  op.options.name = "anomaly";
  op.where = closure.get<ResultLook>().about.where;
  push(op);
}

void look(std::vector<Window> windows, const ResultLook& body, Ticket (*push)(const ArrayPush& given)) {
  while (!windows.empty()) {
    const Device device = windows[0].array.device();
    const auto others = std::stable_partition(windows.begin(), windows.end(),
                                              [&](const Window& w) { return w.array.device() == device; });
    look_on_device({std::make_move_iterator(windows.begin()), std::make_move_iterator(others)}, body, push);
    windows.erase(windows.begin(), others);
  }
}

std::string text_of(double value) { return std::isnan(value) ? "nan" : value < 0 ? "-inf" : "inf"; }

}  // namespace

Ticket detail::push_looked_at(const ArrayPush& given, Ticket (*push)(const ArrayPush& given)) {
  const char* const called = given.options.name ? given.options.name
                             : given.options.op ? given.options.op->name
                                                : "push";
  for (const NDArray& y : given.outputs) y.in_memory(called, given.where);
  const auto run = [&] { return (current_scope().flags & kRerunFlag) != 0 ? Rerun::push(given, push) : push(given); };
  if (!environment.wrong.empty()) {
    throw UsageError("SLUICE_ANOMALY=" + environment.wrong + ": 0, 1 or nan is wanted");
  }
  // Null: a thread of bodies. What is captured does not run now.
  State* const state = current ? current : environment.state;
  if (!state || !state->looks() || capturing()) return run();
  const std::uint64_t number = state->pushes.fetch_add(1, std::memory_order_relaxed);
  if (std::none_of(given.outputs.begin(), given.outputs.end(), can_be_bad)) return run();
  if (!state->everywhere) state->asked = false;

  const ScopeState& scope = current_scope();
  ResultLook body;
  body.state = state->shared_from_this();
  body.read = std::make_shared<Read>();
  Anomaly& about = body.about;
  about.push = number;
  about.operation = given.options.name ? given.options.name
                    : given.options.op ? name_for_users(given.options.op->name)
                                       : "push";
  about.where = given.where;
  about.layer = current_layer();
  about.device = given.options.on.given ? given.options.on.device : given.outputs[0].device();
  if ((scope.flags & kBackwardFlag) != 0) {
    about.pass = (scope.flags & kRerunFlag) != 0 ? Anomaly::Pass::computed_again : Anomaly::Pass::backward;
    if (about.pass == Anomaly::Pass::backward && gradient_name) about.gradient_of = name_for_users(gradient_name);
  }
  about.results = static_cast<int>(given.outputs.size());

  // What is overwritten has to be read before, and what is on another device by an op there.
  std::vector<Window> before, after;
  for (std::size_t i = 0; i < given.inputs.size(); ++i) {
    if (!can_be_bad(*given.inputs[i])) continue;
    NDArray x = Rerun::seen(*given.inputs[i]);
    const bool apart = std::any_of(given.outputs.begin(), given.outputs.end(), [&](const NDArray& y) {
      return y.array() == given.inputs[i]->array() || !(y.device() == x.device());
    });
    (apart ? before : after).push_back({std::move(x), false, static_cast<int>(i)});
  }
  for (std::size_t i = 0; i < given.outputs.size(); ++i) {
    if (!given.updates.contains(i) || !can_be_bad(given.outputs[i])) continue;
    before.push_back({Rerun::seen(given.outputs[i]), true, static_cast<int>(i)});
  }
  ResultLook first = body;
  first.old = true;
  look(std::move(before), first, push);
  const Ticket ticket = run();
  for (std::size_t i = 0; i < given.outputs.size(); ++i) {
    if (can_be_bad(given.outputs[i])) {
      after.push_back({Rerun::seen(given.outputs[i]), true, static_cast<int>(i)});
    }
  }
  look(std::move(after), body, push);
  return ticket;
}

void detail::set_gradient_of(const char* name) { gradient_name = name; }

AnomalyScope::AnomalyScope(const AnomalyOptions& options)
    : state_(std::make_shared<State>()), outer_(std::exchange(current, state_.get())) {
  state_->options = options;
  current_scope().flags |= kAnomalyFlag;
}

AnomalyScope::~AnomalyScope() {
  current = outer_;
  if (state_->asked) return;
  try {
    if (const std::optional<Anomaly> found = first()) {
      std::fprintf(stderr, "sluice: anomaly: %s\n", found->to_string().c_str());
    }
  } catch (...) {  // nothing can be waited for any more: a stopped engine, a circle of waits
  }
}

std::optional<Anomaly> AnomalyScope::first(std::source_location where) {
  state_->wait(where);
  const std::lock_guard lock(state_->mutex);
  return state_->first;
}

void AnomalyScope::check(std::source_location where) {
  if (std::optional<Anomaly> found = first(where)) throw AnomalyError(std::move(*found));
}

void AnomalyScope::clear(std::source_location where) {
  state_->wait(where);
  const std::lock_guard lock(state_->mutex);
  state_->first.reset();
}

std::string Anomaly::to_string() const {
  std::string line = "[" + operation + "] " + sluice::to_string(where);
  if (*layer != '\0') line += std::string(" in ") + layer;
  if (!(device == cpu(0))) line += " on " + sluice::to_string(device);
  if (pass == Pass::computed_again) line += ", computed again";
  if (pass == Pass::backward)
    line += gradient_of.empty() ? ", in backward" : ", for the gradient of [" + gradient_of + "]";
  line += ": " + text_of(value) + " at " + sluice::to_string(index) + " of the result ";
  if (results > 1) line += std::to_string(result) + ", ";
  line += sluice::to_string(shape) + " " + std::string(name_of(dtype)) + "; ";
  if (input == kNone) return line + "all that it read was finite";
  if (input == kOldValue) return line + "the old value had " + text_of(input_value) + " already";
  return line + "input " + std::to_string(input) + " had " + text_of(input_value) + " already";
}

}  // namespace sluice
