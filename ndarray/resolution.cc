#include "sluice/ndarray/resolution.h"

#include <algorithm>
#include <functional>

#include "sluice/ndarray/overlaps.h"

namespace sluice {

void Resolution::check() {
  records_ = push_.tape && check_recorded();
  if (push_.opaque) check_opaque();
}

bool Resolution::outputs_held() const {
  if (push_.fresh) return false;
  bool stay = false;
  for (const NDArray& y : push_.outputs) {
    const Array& array = *y.array();
    if (array.stays()) {
      stay = true;
    } else if (array.held()) {
      return true;
    }
  }
  return stay && !holders(push_.outputs).empty();
}

void Resolution::resolve() {
  call = std::make_unique<ArrayCall>();
  call->body = push_.body;
  if (push_.attributes) call->attributes = *push_.attributes;
  call->inputs = static_cast<std::uint32_t>(push_.inputs.size());
  call->issues = push_.issues || push_.later;
  call->sees_poison = push_.options.on_poison != OnPoison::skip;
  call->tries = push_.tries;
  call->torn_unissued = push_.torn_unissued;
  for (const NDArray* x : push_.inputs) {
    const Array& array = *x->array();
    Resolved& operand = call->add(array.version(), *x);
    if (push_.dense_inputs && !x->is_contiguous()) operand.pack = call->packs = true;
    use(*operand.version, AccessMode::read);
  }
  if (records_) record();
  if (push_.fresh) {
    for (const NDArray& y : push_.outputs) {
      const Array& array = *y.array();
      call->add(array.version(), y);
      use(*array.version(), AccessMode::first);
    }
  } else {
    for (std::size_t i = 0; i < push_.outputs.size(); ++i) resolve_output(i);
    if (stay_) copy_away();
    if (!written_.empty()) pack_inputs();
  }
  if (recorded()) keep_outputs();
}

void Resolution::check_opaque() {
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

// ---- recording

/// True if the push is to be recorded.
bool Resolution::check_recorded() const {
  const Tape& tape = *push_.tape;
  bool record = tape.flows && std::any_of(push_.inputs.begin(), push_.inputs.end(),
                                          [](const NDArray* x) { return static_cast<bool>(x->array()->history); });
  if (!tape.in_place) return record;
  for (const NDArray& y : push_.outputs) {
    const Array& array = *y.array();
    if (array.leaf) {
      throw ArrayError(name_, push_.where, "writes in place to an array that wants a gradient; use a NoGrad scope");
    }
    if (array.history) record = true;
  }
  if (!record) return false;
  if (push_.outputs[0].array()->stays() && !push_.outputs[0].array()->imported()) {
    throw ArrayError(name_, push_.where, "a recorded write to a partitioned array");
  }
  if (push_.outputs.size() > 1 || push_.updates.any()) {
    throw ArrayError(name_, push_.where, "has no gradient: call it in a NoGrad scope, or on detached arrays");
  }
  return true;
}

/// Takes what the tape keeps, before outputs are resolved: an output whose value the tape keeps goes to a new version.
void Resolution::record() {
  Tape& tape = *push_.tape;
  tape.history = tape.begin();
  tape.input_histories.resize(push_.inputs.size());
  for (std::size_t i = 0; i < push_.inputs.size(); ++i) {
    const Array& array = *push_.inputs[i]->array();
    tape.input_histories[i] = {array.history, array.history_output};
    if (array.history && tape.flows && !tape.needs.empty()) keep(tape.needs[std::min(i, tape.needs.size() - 1)], i);
  }
}

/// Keeps what the gradient of an input uses.
void Resolution::keep(const Needs& needs, std::size_t input) {
  for (const Needs::Value& value : needs.values()) {
    switch (value.kind) {
      case Needs::Kind::input:
        keep_input(value.index);
        break;
      case Needs::Kind::own_input:
        keep_input(input);
        break;
      case Needs::Kind::every_input:
        for (std::size_t i = 0; i < push_.inputs.size(); ++i) keep_input(i);
        break;
      case Needs::Kind::output:
        kept_outputs_.resize(push_.outputs.size());
        if (value.index < kept_outputs_.size()) kept_outputs_[value.index] = true;
        break;
      case Needs::Kind::every_output:
        kept_outputs_.resize(push_.outputs.size());
        std::fill(kept_outputs_.begin(), kept_outputs_.end(), true);
        break;
    }
  }
}

void Resolution::keep_input(std::size_t index) {
  if (index >= push_.inputs.size()) return;
  std::vector<NDArray>& saved = push_.tape->saved_inputs;
  if (saved.empty()) saved.resize(push_.inputs.size());
  const NDArray& x = *push_.inputs[index];
  if (!saved[index].defined()) saved[index] = x.on(x.array()->snapshot());
}

void Resolution::keep_outputs() {
  Tape& tape = *push_.tape;
  tape.output_histories.resize(push_.outputs.size());
  if (!kept_outputs_.empty()) tape.saved_outputs.resize(push_.outputs.size());
  for (std::size_t i = 0; i < push_.outputs.size(); ++i) {
    Array& array = *push_.outputs[i].array();
    tape.output_histories[i] = {array.history, array.history_output};
    if (!keeps_output(i)) continue;
    Ref<Array> kept = array.snapshot();  // its version comes with apply()
    kept->history = Ref<History>();      // the history will own it: a reference back would be a ring
    kept->leaf = false;
    tape.saved_outputs[i] = push_.outputs[i].on(std::move(kept));
  }
}

// ---- outputs

void Resolution::resolve_output(std::size_t index) {
  const NDArray& y = push_.outputs[index];
  Array& array = *y.array();
  const bool reads = push_.updates.contains(index);
  const bool overwrites = !reads && y.count() == array.shape().count();
  Resolved& operand = call->add(array.version(), y);
  if (push_.dense_outputs && !y.is_contiguous()) operand.pack = call->packs = true;
  operand.preload = reads;
  operand.update = !overwrites;
  if (array.stays()) {
    stay_ = true;
  } else if (array.held() || moves(array)) {
    return move_output(array, overwrites, operand);
  }
  const Buffer& buffer = operand.version->buffer();
  const AccessMode mode = overwrites ? AccessMode::write : AccessMode::update;
  if (const Import* memory = buffer.import()) {
    if (use_foreign(*memory, mode)) operand.update = true;
  } else {
    use(*operand.version, mode);
  }
  // The array and this push alone name the version of most outputs: no input lies there.
  if (!array.stays() && operand.version->refs() == 2) return;
  if (!push_.inputs.empty() && y.count() != 0) written_.emplace_back(stretch_of(y, buffer), index);
}

void Resolution::move_output(Array& array, bool overwrites, Resolved& operand) {
  operand.moved = true;
  const auto [at, first] = rare().moved.try_emplace(&array, rare().moves.size());
  if (!first) {  // another part of it is an output too
    operand.version = rare().moves[at->second].version;
    return;
  }
  Engine& engine = array.engine();
  const std::size_t bytes = array.version()->buffer().bytes();
  Ref<Version> fresh(new Version(array.version()->buffer().another(bytes), engine.variable("array")));
  if (!overwrites) {
    call->add_preserve({operand.version, fresh, 0, bytes});
    use(*operand.version, AccessMode::read);
  }
  use(*fresh, AccessMode::first);
  rare().moves.push_back({&array, array.version(), fresh});
  operand.version = std::move(fresh);  // in which no input lies
}

/// A variable that stands for other memory too is not overwritten by a write of all of this. True if there is one.
bool Resolution::use_foreign(const Import& memory, AccessMode mode) {
  if (memory.shared(!recorded())) {
    throw ArrayError(name_, push_.where,
                     recorded() ? "a recorded write to memory that another import shows"
                                : "writes to memory of an import that recorded operators wrote");
  }
  bool others = false;
  memory.each_variable([&](const Variable& v, bool covered) {
    accesses_.emplace_back(v.get(), covered ? mode : AccessMode::update);
    others = others || !covered;
  });
  return others;
}

void Resolution::copy_away() {
  std::vector<Ref<Array>> held = holders(push_.outputs);
  std::map<const Version*, Ref<Version>> copies;  // one for all that show the same
  for (Ref<Array>& holder : held) {
    const Ref<Version> from = holder->version();
    Ref<Version>& fresh = copies[from.get()];
    if (!fresh) {
      const std::size_t item = size_of(holder->dtype());
      // As large as the whole, so that handles keep their offsets.
      fresh =
          Ref<Version>(new Version(from->buffer().another(from->buffer().bytes()), holder->engine().variable("array")));
      call->add_preserve({from, fresh, static_cast<std::size_t>(holder->base_offset()) * item,
                          static_cast<std::size_t>(holder->shape().count()) * item});
      use(*from, AccessMode::read);
      use(*fresh, AccessMode::first);
    }
    rare().aways.push_back({std::move(holder), from, fresh});
  }
}

/// As if all inputs were read before any output is written: those that overlap one are copied first, unless the
/// operator is elementwise and the windows coincide.
void Resolution::pack_inputs() {
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
      call->operands[i].pack = call->packs = true;
      break;
    }
  }
}

// ---- the instant

void Resolution::apply() noexcept {
  if (rare_) {
    for (Move& move : rare_->moves) move.array->set_version(std::move(move.version));
    for (Away& away : rare_->aways) away.array->set_version(std::move(away.version));
    for (std::size_t i = 0; i < rare_->dropped.size(); ++i) {
      Array& array = *push_.outputs[i].array();
      if (!array.history) continue;
      if (array.imported()) array.version()->buffer().import()->set_recorded(false);
      std::swap(array.history, rare_->dropped[i]);
    }
  }
  if (!recorded()) return;
  for (std::size_t i = 0; i < push_.outputs.size(); ++i) {
    Array& array = *push_.outputs[i].array();
    if (array.imported()) array.version()->buffer().import()->set_recorded(true);
    array.history = push_.tape->history;
    array.history_output = static_cast<std::int32_t>(i);
    array.leaf = false;
    if (keeps_output(i)) {
      const Ref<Array>& kept = push_.tape->saved_outputs[i].array();
      kept->set_version(array.version());
    }
  }
}

}  // namespace sluice
