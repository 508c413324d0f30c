#include "sluice/ndarray/push.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "sluice/ndarray/short_list.h"
#include "sluice/ndarray/strided_copy.h"
#include "sluice/ndarray/windows.h"
#include "sluice/resources/object_pool.h"

namespace sluice {
namespace {

/// An operand as resolved: the value it stands for, and the window on it. The body fills in the memory.
struct Resolved {
  Ref<Version> version;
  TensorView view;
  std::int64_t offset = 0;
  bool pack = false;     ///< hand the body a contiguous copy
  bool preload = false;  ///< an output that the body also reads: a packed copy begins with its elements
};

/// A value to copy before the body runs: this stretch of `from`, to the same place.
struct Preserve {
  Ref<Version> from, to;
  std::size_t begin = 0, bytes = 0;
};

/// What the op owns until it completes.
struct ArrayCall : Pooled<ArrayCall> {
  ArrayPush::Body body = nullptr;
  std::shared_ptr<const void> closure;
  ShortList<Resolved, 4> operands;  ///< inputs, then outputs
  std::size_t inputs = 0;
  std::vector<Preserve> preserves;

  void run(Context& context);
};

void ArrayCall::run(Context& context) {
  constexpr std::size_t kInline = 6;
  std::array<TensorView, kInline> few;
  std::vector<TensorView> many(operands.size() > kInline ? operands.size() : 0);
  const std::span<TensorView> views =
      many.empty() ? std::span(few).first(operands.size()) : std::span<TensorView>(many);
  std::vector<Scratch> packed;
  try {
    for (const Preserve& p : preserves) {
      std::memcpy(p.to->buffer().data() + p.begin, p.from->buffer().data() + p.begin, p.bytes);
    }
    for (std::size_t i = 0; i < operands.size(); ++i) {
      const Resolved& operand = operands[i];
      TensorView view = operand.view;
      view.data = operand.version->buffer().data() + operand.offset * static_cast<std::int64_t>(size_of(view.dtype));
      if (operand.pack) {
        packed.emplace_back(context.device(), static_cast<std::size_t>(view.count()) * size_of(view.dtype));
        const TensorView dense{packed.back().as<std::byte>(), view.dtype, view.shape, row_major(view.shape)};
        if (i < inputs || operand.preload) strided_copy(view, dense);
        view = dense;
      }
      views[i] = view;
    }
  } catch (...) {
    context.wrote_nothing();  // out of memory, before the body
    throw;
  }
  ArrayContext body_context(views.first(inputs), views.subspan(inputs), closure.get(), &context);
  body(body_context);
  for (std::size_t i = inputs; i < operands.size(); ++i) {
    const Resolved& operand = operands[i];
    if (!operand.pack) continue;
    TensorView target = operand.view;
    target.data = operand.version->buffer().data() + operand.offset * static_cast<std::int64_t>(size_of(target.dtype));
    strided_copy(views[i], target);
  }
}

struct CallClosure {
  std::unique_ptr<ArrayCall> call;
  void operator()(Context& context) const { call->run(context); }
};

/// The masks of a push speak of its first 32 arrays.
bool bit(std::uint32_t mask, std::size_t i) { return i < 32 && (mask >> i & 1U) != 0; }

/// The locks of the arrays of a push, in address order.
class Locks {
 public:
  void add(Array& array) {
    std::recursive_mutex* mutex = &array.mutex();
    if (count_ == few_.size()) {
      many_.assign(few_.begin(), few_.end());
    }
    if (count_ < few_.size()) {
      few_[count_] = mutex;
    } else {
      many_.push_back(mutex);
    }
    ++count_;
  }
  void settle() {
    std::span<std::recursive_mutex*> all = list();
    std::sort(all.begin(), all.end(), std::less<>());
    count_ = static_cast<std::size_t>(std::unique(all.begin(), all.end()) - all.begin());
    if (count_ <= few_.size() && !many_.empty()) {
      std::copy_n(many_.begin(), count_, few_.begin());
      many_.clear();
    }
  }
  void lock() {
    for (std::recursive_mutex* m : list()) m->lock();
  }
  void unlock() {
    for (std::recursive_mutex* m : list()) m->unlock();
  }

 private:
  std::span<std::recursive_mutex*> list() {
    return many_.empty() ? std::span(few_).first(count_) : std::span(many_).first(count_);
  }
  std::array<std::recursive_mutex*, 8> few_{};
  std::vector<std::recursive_mutex*> many_;
  std::size_t count_ = 0;
};

/// One attempt at a push: what was resolved, and what to set when it commits.
class Attempt {
 public:
  explicit Attempt(const ArrayPush& push) : push_(push) {}

  void resolve(ArrayPushResult& result);
  /// True if what was resolved still holds.
  bool current() const;
  /// Takes the snapshots for save_outputs. After current(), under the same locks.
  void keep_outputs(ArrayPushResult& result);
  /// Sets what the push changes beside elements: versions and histories.
  void apply(ArrayPushResult& result) noexcept;

  std::span<const Access> accesses() const { return {accesses_.begin(), accesses_.size()}; }
  std::unique_ptr<ArrayCall> call;

 private:
  struct Move {  ///< an output's array goes to a new version
    Array* array;
    Ref<Version> from, version;
  };
  struct Away {  ///< a held value of a partitioned buffer, copied out
    Ref<Array> array;
    Ref<Version> version;
  };

  void resolve_output(std::size_t index);
  void copy_away(Array& array);
  void use(const Version& version, AccessMode mode) {
    version.each_variable([&](const Variable& v) { accesses_.emplace_back({v.get(), mode}); });
  }

  const ArrayPush& push_;
  ShortList<Access, 8> accesses_;
  std::vector<Move> moves_;
  std::vector<Away> aways_;
};

void Attempt::resolve(ArrayPushResult& result) {
  call = std::make_unique<ArrayCall>();
  call->body = push_.body;
  call->closure = push_.closure;
  call->inputs = push_.inputs.size();
  if (push_.want_histories) {
    result.input_histories.resize(push_.inputs.size());
    result.output_histories.resize(push_.outputs.size());
  }
  if (push_.save_inputs) result.saved_inputs.assign(push_.inputs.size(), NDArray());
  for (std::size_t i = 0; i < push_.inputs.size(); ++i) {
    const NDArray& x = *push_.inputs[i];
    Array& array = *x.array();
    Resolved& operand =
        call->operands.emplace_back({array.version(), {nullptr, x.dtype(), x.shape(), x.strides()}, x.offset()});
    operand.pack = push_.dense_inputs && !x.is_contiguous();
    use(*operand.version, AccessMode::read);
    if (push_.want_histories) result.input_histories[i] = {array.history, array.history_output};
    if (bit(push_.save_inputs, i)) result.saved_inputs[i] = x.on(array.snapshot());
  }
  for (std::size_t i = 0; i < push_.outputs.size(); ++i) resolve_output(i);
  if (push_.want_histories) {
    for (std::size_t i = 0; i < push_.outputs.size(); ++i) {
      const Array& array = *push_.outputs[i].array();
      result.output_histories[i] = {array.history, array.history_output};
    }
  }
}

void Attempt::resolve_output(std::size_t index) {
  const NDArray& y = push_.outputs[index];
  Array& array = *y.array();
  const bool reads = bit(push_.updates, index);
  const bool whole = y.count() == array.shape().count();
  Resolved& operand =
      call->operands.emplace_back({array.version(), {nullptr, y.dtype(), y.shape(), y.strides()}, y.offset()});
  operand.pack = push_.dense_outputs && !y.is_contiguous();
  operand.preload = reads;
  if (array.group()) {
    copy_away(array);
  } else if (array.held()) {
    Engine& engine = array.engine();
    const std::size_t bytes = array.version()->buffer().bytes();
    Ref<Version> fresh(new Version(Ref<Buffer>(new Buffer(array.device(), bytes)), engine.variable("array", false)));
    if (reads || !whole) {
      call->preserves.push_back({operand.version, fresh, 0, bytes});
      use(*operand.version, AccessMode::read);
    }
    use(*fresh, AccessMode::write);
    moves_.push_back({&array, array.version(), fresh});
    operand.version = std::move(fresh);
    return;  // no input lies in the new buffer
  }
  use(*operand.version, whole && !reads ? AccessMode::write : AccessMode::update);
  const auto [low, high] = extent(y.shape(), y.strides(), y.offset());
  for (std::size_t i = 0; i < push_.inputs.size(); ++i) {
    const NDArray& x = *push_.inputs[i];
    if (&call->operands[i].version->buffer() != &operand.version->buffer()) continue;
    if (push_.elementwise && same_window(x, y)) continue;
    const auto [first, end] = extent(x.shape(), x.strides(), x.offset());
    if (first < high && low < end) call->operands[i].pack = true;
  }
}

void Attempt::copy_away(Array& array) {
  for (Ref<Array>& holder : array.holders()) {
    if (std::any_of(aways_.begin(), aways_.end(), [&](const Away& a) { return a.array == holder; })) continue;
    const std::size_t item = size_of(array.dtype());
    // As large as the whole, so that handles keep their offsets.
    Ref<Version> fresh(new Version(Ref<Buffer>(new Buffer(array.device(), array.version()->buffer().bytes())),
                                   array.engine().variable("array", false)));
    call->preserves.push_back({holder->version(), fresh, static_cast<std::size_t>(holder->base_offset()) * item,
                               static_cast<std::size_t>(holder->shape().count()) * item});
    use(*holder->version(), AccessMode::read);
    use(*fresh, AccessMode::write);
    aways_.push_back({std::move(holder), std::move(fresh)});
  }
}

bool Attempt::current() const {
  for (std::size_t i = 0; i < push_.inputs.size(); ++i) {
    if (!(push_.inputs[i]->array()->version() == call->operands[i].version)) return false;
  }
  for (std::size_t i = 0; i < push_.outputs.size(); ++i) {
    Array& array = *push_.outputs[i].array();
    const auto move = std::find_if(moves_.begin(), moves_.end(), [&](const Move& m) { return m.array == &array; });
    if (move != moves_.end()) {
      if (!(array.version() == move->from)) return false;  // what it keeps of the old elements would be stale
      continue;
    }
    if (!(array.version() == call->operands[call->inputs + i].version)) return false;
    if (array.group()) {
      for (const Ref<Array>& holder : array.holders()) {
        if (std::none_of(aways_.begin(), aways_.end(), [&](const Away& a) { return a.array == holder; })) return false;
      }
    } else if (array.held()) {
      return false;
    }
  }
  return true;
}

void Attempt::keep_outputs(ArrayPushResult& result) {
  if (!push_.save_outputs) return;
  result.saved_outputs.assign(push_.outputs.size(), NDArray());
  for (std::size_t i = 0; i < push_.outputs.size(); ++i) {
    if (!bit(push_.save_outputs, i)) continue;
    Ref<Array> kept = push_.outputs[i].array()->snapshot();  // its version comes with apply()
    kept->history = Ref<History>();  // the history will own it: a reference back would be a ring
    kept->leaf = false;
    result.saved_outputs[i] = push_.outputs[i].on(std::move(kept));
  }
}

void Attempt::apply(ArrayPushResult& result) noexcept {
  for (Move& move : moves_) move.array->set_version(std::move(move.version));
  for (Away& away : aways_) away.array->set_version(std::move(away.version));
  if (!push_.history) return;
  for (std::size_t i = 0; i < push_.outputs.size(); ++i) {
    Array& array = *push_.outputs[i].array();
    array.history = push_.history;
    array.history_output = push_.history_output + static_cast<std::int32_t>(i);
    array.leaf = false;
    if (bit(push_.save_outputs, i)) {
      const Ref<Array>& kept = result.saved_outputs[i].array();
      kept->set_version(array.version());
    }
  }
}

void check(const ArrayPush& push, const char* name) {
  const Array* first = nullptr;
  const auto same_engine = [&](const NDArray& x) {
    const Array& array = x.checked(name, push.where);
    if (!first) first = &array;
    if (&array.engine() != &first->engine()) {
      throw ArrayError(name, push.where, "arrays of different engines");
    }
  };
  for (const NDArray* x : push.inputs) same_engine(*x);
  for (const NDArray& y : push.outputs) same_engine(y);
  for (std::size_t i = 0; i < push.outputs.size(); ++i) {
    const NDArray& y = push.outputs[i];
    if (overlaps_itself(y)) {
      throw ArrayError(name, push.where, "an output of shape " + to_string(y.shape()) + " that overlaps itself");
    }
    for (std::size_t j = 0; j < i; ++j) {
      const NDArray& z = push.outputs[j];
      if (!z.same_array(y) && !(z.array()->group() && z.array()->group() == y.array()->group())) continue;
      const auto [low, high] = extent(y.shape(), y.strides(), y.offset());
      const auto [first_z, end_z] = extent(z.shape(), z.strides(), z.offset());
      if (first_z < high && low < end_z) throw ArrayError(name, push.where, "outputs that overlap each other");
    }
  }
  if (!first) throw ArrayError(name, push.where, "no arrays");
}

/// Resolves and pushes. `options` has its place.
ArrayPushResult push_checked(const ArrayPush& push, const PushOptions& options) {
  Locks locks;
  for (const NDArray* x : push.inputs) locks.add(*x->array());
  for (const NDArray& y : push.outputs) locks.add(*y.array());
  locks.settle();

  // Resolved and committed under the locks; the caps, at which a push may have to wait, come between them. When a value
  // was moved meanwhile, by another thread, all is resolved again.
  for (;;) {
    ArrayPushResult result;
    Attempt attempt(push);
    {
      std::lock_guard lock(locks);
      attempt.resolve(result);
    }
    detail::CoreBase& core = *attempt.accesses().front().variable->core;
    const auto [operation, closure] =
        core.begin_push(attempt.accesses(), sizeof(CallClosure), alignof(CallClosure), options, push.where);
    std::unique_lock lock(locks);
    if (!attempt.current()) {
      lock.unlock();
      core.abandon_push(operation);
      continue;
    }
    try {
      attempt.keep_outputs(result);
    } catch (...) {
      lock.unlock();
      core.abandon_push(operation);
      throw;
    }
    new (closure) CallClosure{std::move(attempt.call)};
    attempt.apply(result);  // before the commit, because serial mode runs the body there
    result.ticket = core.commit_push(operation, detail::closure_table<CallClosure>);
    return result;
  }
}

/// Where an output's value is held elsewhere and has to be copied, the copy is an operation of its own: then both
/// values are whole when the write itself is skipped (SEMANTICS.md, 14).
void copy_held_values(const ArrayPush& push, const PushOptions& options) {
  for (std::size_t i = 0; i < push.outputs.size(); ++i) {
    const NDArray& y = push.outputs[i];
    Array& array = *y.array();
    {
      std::lock_guard lock(array.mutex());
      const bool overwrites = !bit(push.updates, i) && y.count() == array.shape().count();
      if (array.group() ? array.holders().empty() : overwrites || !array.held()) continue;
    }
    const NDArray whole(y.array());
    ArrayPush copy;
    copy.body = [](ArrayContext&) {};
    copy.outputs = std::span(&whole, 1);
    copy.updates = 1;
    copy.where = push.where;
    PushOptions copy_options;
    copy_options.on = options.on;
    copy_options.priority = options.priority;
    copy_options.name = "copy on write";
    copy_options.bytes = whole.bytes();
    push_checked(copy, copy_options);
  }
}

}  // namespace

ArrayPushResult push_arrays(const ArrayPush& push) {
  const char* name = push.options.name ? push.options.name : push.options.op ? push.options.op->name : "push";
  check(push, name);
  // A replay would need its versions pinned (SEMANTICS.md, 21); until arrays do that, better none than a wrong one.
  if (current_scope().recorder) throw ArrayError(name, push.where, "operations on arrays cannot be captured");
  const Array& any = push.outputs.empty() ? *push.inputs[0]->array() : *push.outputs[0].array();
  PushOptions options = push.options;
  if (!options.on.given) options.on = any.device();
  copy_held_values(push, options);
  return push_checked(push, options);
}

}  // namespace sluice
