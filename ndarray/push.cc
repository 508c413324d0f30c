#include "sluice/ndarray/push.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>

#include "sluice/ndarray/array_call.h"
#include "sluice/ndarray/array_locks.h"
#include "sluice/ndarray/overlaps.h"
#include "sluice/ndarray/short_list.h"

namespace sluice {
namespace {

struct CallClosure {
  std::unique_ptr<ArrayCall> call;
  void operator()(Context& context) const { call->run(context); }
};

/// The masks of a push speak of its first 32 arrays.
bool bit(std::uint32_t mask, std::size_t i) { return i < 32 && (mask >> i & 1U) != 0; }

/// One attempt at a push: what was resolved, and what to set when it commits.
class Attempt {
 public:
  Attempt(const ArrayPush& push, const char* name) : push_(push), name_(name) {}

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
  struct Away {  ///< a held value of memory that others lie in, copied out
    Ref<Array> array;
    Ref<Version> from, version;
  };
  struct Written {  ///< where an output lies; no two overlap
    Stretch where;
    std::size_t output;
  };

  void resolve_output(std::size_t index);
  /// True if an earlier output moved the array. Whoever held its value may be gone since then, because a snapshot goes
  /// without a lock, but all outputs of one array go to one version.
  bool moves(const Array& array) const { return rare_ && rare_->moved.count(&array) != 0; }
  void move_output(Array& array, bool overwrites, Resolved& operand);
  void copy_away();
  void pack_inputs();
  void use(const Version& version, AccessMode mode) {
    version.each_variable([&](const Variable& v) { accesses_.emplace_back({v.get(), mode}); });
  }
  void use_foreign(const Import& memory, AccessMode mode);
  void check_histories();

  const ArrayPush& push_;
  const char* const name_;
  ShortList<Access, 8> accesses_;
  ShortList<Written, 2> written_;
  bool stay_ = false;  ///< there is an output whose array stays
  /// What most pushes have none of.
  struct Rare {
    std::vector<Move> moves;
    std::map<const Array*, std::size_t> moved;  ///< where in `moves`
    std::vector<Away> aways;                    ///< by `array`
    std::vector<Ref<History>> dropped;          ///< room for those that outputs lose: they go when the locks are open
    std::vector<bool> covered;  ///< of each import that is overwritten: its variables that stand for no other memory
  };
  Rare& rare() { return *(rare_ ? rare_ : rare_ = std::make_unique<Rare>()); }
  std::unique_ptr<Rare> rare_;
};

void Attempt::resolve(ArrayPushResult& result) {
  call = std::make_unique<ArrayCall>();
  call->body = push_.body;
  call->closure = push_.closure;
  call->inputs = push_.inputs.size();
  call->issues = push_.issues;
  call->tries = push_.tries;
  call->torn_unissued = push_.torn_unissued;
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
  if (stay_) copy_away();
  if (written_.size() > 0) pack_inputs();
  if (push_.opaque) check_histories();
  if (push_.want_histories) {
    for (std::size_t i = 0; i < push_.outputs.size(); ++i) {
      const Array& array = *push_.outputs[i].array();
      result.output_histories[i] = {array.history, array.history_output};
    }
  }
}

void Attempt::check_histories() {
  if (!grad_mode()) return;
  for (const NDArray& y : push_.outputs) {
    const Array& array = *y.array();
    if (!array.history) continue;
    if (array.leaf) {
      throw ArrayError(name_, push_.where, "writes in place to an array that wants a gradient; use a NoGrad scope");
    }
    if (y.count() != array.shape().count()) {
      throw ArrayError(name_, push_.where,
                       "writes " + to_string(y.shape()) + " of an array of " + to_string(array.shape()) +
                           " that recorded operators made, and is not recorded: use a NoGrad scope, or detach()");
    }
    rare().dropped.resize(push_.outputs.size());
  }
}

void Attempt::resolve_output(std::size_t index) {
  const NDArray& y = push_.outputs[index];
  Array& array = *y.array();
  const bool reads = push_.updates_all || bit(push_.updates, index);
  const bool overwrites = !reads && y.count() == array.shape().count();
  Resolved& operand =
      call->operands.emplace_back({array.version(), {nullptr, y.dtype(), y.shape(), y.strides()}, y.offset()});
  operand.pack = push_.dense_outputs && !y.is_contiguous();
  operand.preload = reads;
  if (array.stays()) {
    stay_ = true;
  } else if (array.held() || moves(array)) {
    return move_output(array, overwrites, operand);
  }
  const Buffer& buffer = operand.version->buffer();
  const AccessMode mode = overwrites ? AccessMode::write : AccessMode::update;
  if (const Import* memory = buffer.import()) {
    use_foreign(*memory, mode);
  } else {
    use(*operand.version, mode);
  }
  // The array and this push alone name the version of most outputs: no input lies there.
  if (!array.stays() && operand.version->refs() == 2) return;
  if (!push_.inputs.empty() && y.count() != 0) written_.emplace_back({stretch_of(y, buffer), index});
}

void Attempt::move_output(Array& array, bool overwrites, Resolved& operand) {
  operand.moved = true;
  const auto [at, first] = rare().moved.try_emplace(&array, rare().moves.size());
  if (!first) {  // another part of it is an output too
    operand.version = rare().moves[at->second].version;
    return;
  }
  Engine& engine = array.engine();
  const std::size_t bytes = array.version()->buffer().bytes();
  Ref<Version> fresh(new Version(array.version()->buffer().another(bytes), engine.variable("array", false)));
  if (!overwrites) {
    call->preserves.push_back({operand.version, fresh, 0, bytes});
    use(*operand.version, AccessMode::read);
  }
  use(*fresh, AccessMode::write);
  rare().moves.push_back({&array, array.version(), fresh});
  operand.version = std::move(fresh);  // in which no input lies
}

/// A variable that stands for other memory too is not overwritten by a write of all of this.
void Attempt::use_foreign(const Import& memory, AccessMode mode) {
  if (memory.shared(!push_.history)) {
    throw ArrayError(name_, push_.where,
                     push_.history ? "a recorded write to memory that another import shows"
                                   : "writes to memory of an import that recorded operators wrote");
  }
  memory.each_variable([&](const Variable& v, bool covered) {
    if (mode == AccessMode::write) rare().covered.push_back(covered);
    accesses_.emplace_back({v.get(), covered ? mode : AccessMode::update});
  });
}

void Attempt::copy_away() {
  std::vector<Ref<Array>> held = holders(push_.outputs);
  if (held.empty()) return;
  std::sort(held.begin(), held.end(), [](const auto& a, const auto& b) { return std::less<>()(a.get(), b.get()); });
  std::map<const Version*, Ref<Version>> copies;  // one for all that show the same
  for (Ref<Array>& holder : held) {
    const Ref<Version> from = holder->version();
    Ref<Version>& fresh = copies[from.get()];
    if (!fresh) {
      const std::size_t item = size_of(holder->dtype());
      // As large as the whole, so that handles keep their offsets.
      fresh = Ref<Version>(
          new Version(from->buffer().another(from->buffer().bytes()), holder->engine().variable("array", false)));
      call->preserves.push_back({from, fresh, static_cast<std::size_t>(holder->base_offset()) * item,
                                 static_cast<std::size_t>(holder->shape().count()) * item});
      use(*from, AccessMode::read);
      use(*fresh, AccessMode::write);
    }
    rare().aways.push_back({std::move(holder), from, fresh});
  }
}

/// As if all inputs were read before any output is written: those that overlap one are copied first, unless the
/// operator is elementwise and the windows coincide.
void Attempt::pack_inputs() {
  if (written_.size() > 1) {
    std::sort(written_.begin(), written_.end(), [](const Written& a, const Written& b) { return a.where < b.where; });
  }
  const std::span<const Written> written(written_.begin(), written_.size());
  for (std::size_t i = 0; i < push_.inputs.size(); ++i) {
    const Buffer& buffer = call->operands[i].version->buffer();
    const void* const space = buffer.import() ? nullptr : &buffer;
    auto at = written.begin();
    if (written.size() > 1) {
      at = std::partition_point(at, written.end(),
                                [space](const Written& w) { return std::less<>()(w.where.space, space); });
    }
    if (at == written.end() || at->where.space != space) continue;
    const NDArray& x = *push_.inputs[i];
    if (push_.elementwise && x.same_array(push_.outputs[at->output]) && same_window(x, push_.outputs[at->output])) {
      continue;  // what most updates in place are
    }
    const Stretch read = stretch_of(x, buffer);
    if (written.size() > 1) {
      at = std::partition_point(at, written.end(), [&read](const Written& w) {
        return w.where.space == read.space && w.where.end <= read.begin;
      });
    }
    for (; at != written.end() && at->where.overlaps(read); ++at) {
      const NDArray& y = push_.outputs[at->output];
      if (push_.elementwise && read.begin == at->where.begin && x.dtype() == y.dtype() && same_elements(x, y)) continue;
      call->operands[i].pack = true;
      break;
    }
  }
}

bool Attempt::current() const {
  for (std::size_t i = 0; i < push_.inputs.size(); ++i) {
    if (!(push_.inputs[i]->array()->version() == call->operands[i].version)) return false;
  }
  if (rare_) {
    for (const Move& move : rare_->moves) {
      if (!(move.array->version() == move.from)) return false;  // what it keeps of the old elements would be stale
    }
  }
  std::size_t covered = 0;
  for (std::size_t i = 0; i < push_.outputs.size(); ++i) {
    const NDArray& y = push_.outputs[i];
    const Array& array = *y.array();
    const Resolved& operand = call->operands[call->inputs + i];
    if (push_.opaque && array.history && grad_mode() && (!rare_ || rare_->dropped.empty() || array.leaf)) return false;
    if (operand.moved) continue;
    if (!(array.version() == operand.version)) return false;
    if (!array.stays()) {
      if (array.held()) return false;
      continue;
    }
    const Import* const memory = operand.version->buffer().import();
    if (!memory) continue;
    if (memory->shared(!push_.history)) return false;
    if (bit(push_.updates, i) || y.count() != array.shape().count()) continue;
    bool same = true;
    memory->each_variable([&](const Variable&, bool now) { same = rare_->covered[covered++] == now && same; });
    if (!same) return false;
  }
  if (!stay_) return true;
  const std::vector<Ref<Array>> held = holders(push_.outputs);
  if (held.empty()) return true;
  const std::span<const Away> aways = rare_ ? std::span<const Away>(rare_->aways) : std::span<const Away>();
  const auto known = [aways](const Ref<Array>& holder) {
    const auto at = std::partition_point(aways.begin(), aways.end(), [&holder](const Away& away) {
      return std::less<>()(away.array.get(), holder.get());
    });
    return at != aways.end() && at->array == holder;
  };
  return std::all_of(held.begin(), held.end(), known);
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
  if (rare_) {
    for (Move& move : rare_->moves) move.array->set_version(std::move(move.version));
    for (Away& away : rare_->aways) away.array->set_version(std::move(away.version));
  }
  if (rare_ && !rare_->dropped.empty()) {
    for (std::size_t i = 0; i < push_.outputs.size(); ++i) {
      Array& array = *push_.outputs[i].array();
      if (!array.history) continue;
      if (array.imported()) array.version()->buffer().import()->set_recorded(false);
      std::swap(array.history, rare_->dropped[i]);
    }
  }
  if (!push_.history) return;
  for (std::size_t i = 0; i < push_.outputs.size(); ++i) {
    Array& array = *push_.outputs[i].array();
    if (array.imported()) array.version()->buffer().import()->set_recorded(true);
    array.history = push_.history;
    array.history_output = push_.history_output + static_cast<std::int32_t>(i);
    array.leaf = false;
    if (bit(push_.save_outputs, i)) {
      const Ref<Array>& kept = result.saved_outputs[i].array();
      kept->set_version(array.version());
    }
  }
}

/// An array that the operation may find out of its reach: its device's memory is its own, and the host's belongs to the
/// host, unless it is pinned.
void check_reach(const ArrayPush& push, const char* name, Array& array, Device device) {
  if (array.device() == device || push.issues) return;
  if (array.device().kind == DeviceKind::cpu) {
    std::lock_guard lock(array.mutex());
    if (array.version()->buffer().pinned()) return;
  }
  throw ArrayError(
      name, push.where,
      "an array on " + to_string(array.device()) + " in an operation on " + to_string(device) + "; use to(device)");
}

void check(const ArrayPush& push, const char* name, Device device) {
  const Array* first = nullptr;
  const auto same_engine = [&](const NDArray& x) {
    Array& array = x.checked(name, push.where);
    if (!first) first = &array;
    if (&array.engine() != &first->engine()) {
      throw ArrayError(name, push.where, "arrays of different engines");
    }
    if (array.device().kind != DeviceKind::cpu || device.kind != DeviceKind::cpu) {
      check_reach(push, name, array, device);
    }
  };
  for (const NDArray* x : push.inputs) same_engine(*x);
  for (const NDArray& y : push.outputs) same_engine(y);
  for (std::size_t i = 0; i < push.outputs.size(); ++i) {
    const NDArray& y = push.outputs[i];
    if (overlaps_itself(y)) {
      throw ArrayError(name, push.where, "an output of shape " + to_string(y.shape()) + " that overlaps itself");
    }
  }
  if (push.outputs.size() > 1 && any_overlap(push.outputs)) {
    throw ArrayError(name, push.where, "outputs that overlap each other");
  }
}

/// Resolves and pushes. `options` has its place.
ArrayPushResult push_checked(const ArrayPush& push, const char* name, const PushOptions& options) {
  ArrayLocks locks(push);

  // Resolved and committed under the locks; the caps, at which a push may have to wait, come between them. When a value
  // was moved meanwhile, by another thread, all is resolved again.
  for (;;) {
    ArrayPushResult result;
    Attempt attempt(push, name);
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

/// Where an output's value is held elsewhere it is copied, by an operation of its own: then both values are whole when
/// the write itself is skipped (docs/semantics.md, 14). An overwrite of the whole is no exception, because it may be
/// skipped too.
void copy_held(const ArrayPush& push, const PushOptions& options) {
  for (std::size_t i = 0; i < push.outputs.size(); ++i) {
    const NDArray& y = push.outputs[i];
    Array& array = *y.array();
    {
      std::lock_guard lock(array.mutex());
      if (array.stays() ? holders(std::span(&y, 1)).empty() : !array.held()) continue;
    }
    const NDArray whole(y.array());
    ArrayPush copy;
    copy.outputs = std::span(&whole, 1);
    copy.updates = 1;
    copy.where = push.where;
    PushOptions copy_options;
    copy_options.on = options.on;
    copy_options.priority = options.priority;
    copy_options.name = "copy on write";
    copy_options.bytes = whole.bytes();
    push_checked(copy, copy_options.name, copy_options);
  }
}

}  // namespace

void copy_held_values(std::span<const NDArray> outputs, std::source_location where) {
  for (const NDArray& y : outputs) {
    ArrayPush push;
    push.outputs = std::span(&y, 1);
    push.updates = 1;
    push.where = where;
    PushOptions options;
    options.on = y.checked("copy on write", where).device();
    copy_held(push, options);
  }
}

ArrayPushResult push_arrays(const ArrayPush& push) {
  const char* name = push.options.name ? push.options.name : push.options.op ? push.options.op->name : "push";
  if (push.inputs.empty() && push.outputs.empty()) throw ArrayError(name, push.where, "no arrays");
  PushOptions options = push.options;
  if (!options.on.given) {
    const NDArray& any = push.outputs.empty() ? *push.inputs[0] : push.outputs[0];
    options.on = any.checked(name, push.where).device();
  }
  check(push, name, options.on.device);
  // A replay would need its versions pinned (docs/semantics.md, 21). Arrays cannot do that yet, so a capture is
  // refused.
  if (current_scope().recorder) throw ArrayError(name, push.where, "operations on arrays cannot be captured");
  copy_held(push, options);
  return push_checked(push, name, options);
}

}  // namespace sluice
