// Core<P>, capture: pushes that are recorded, and the edges between them.
#pragma once

#include <algorithm>

#include "sluice/engine/detail/core.h"

namespace sluice::detail {

template <class P>
void Core<P>::refuse_capture(const char* what) const {
  if (thread_state().recorder)
    throw UsageError("[" + std::string(what) + "] inside a capture: nothing runs before the replay");
}

template <class P>
std::shared_ptr<ProgramBase> Core<P>::begin_capture(const char* name, const std::source_location& where) {
  if (thread_state().recorder) throw UsageError("[capture] " + to_string(where) + ": inside another capture");
  auto program = std::make_shared<Recorded>();
  program->core = shared_from_this();
  program->name = name;
  program->variables.push_back(Variable(new_variable(name, true)));
  return program;
}

/// Records a push. It takes nothing from the caps, and has no ticket.
template <class P>
OpenPush Core<P>::record(std::span<const Access> accesses, std::size_t closure_size, std::size_t closure_align,
                         const PushOptions& options, const std::source_location& where, Lane<P>& lane) {
  const ScopeState& scope = current_scope();
  Recorded& program = *static_cast<Recorded*>(thread_state().recorder);
  if (program.core.get() != this) bad_use(options, where, "inside a capture of another engine");
  Info& info = program.infos.emplace_back();
  try {
    info.program = &program;
    for (const Joined& a : join(accesses, scope.sequence.get())) {
      info.positions.push_back(a.position);
      info.accesses.push_back({a.variable, a.mode, false});
      a.variable->refs.fetch_add(1, std::memory_order_relaxed);
      program.variables.push_back(Variable(a.variable));
    }
    info.kind = OpKind::captured;
    info.name = options.name ? options.name : options.op ? options.op->name : "op";
    info.info = options.op;
    info.where = where;
    info.tag = scope.tag;
    info.flags = scope.flags;
    info.scope_device = lane.kind == LaneKind::io ? scope.device : lane.device;
    info.cancel = scope.cancel;
    info.layer = scope.layer;
    info.lane = lane.index;
    info.path = static_cast<std::uint16_t>(kCaptured | options.priority << kPriorityShift | lane.path);
    if (scope.tag || scope.flags || scope.cancel || scope.layer || info.scope_device != lane.device)
      info.path |= kOwnScope;
    if (options.on_poison != OnPoison::skip) info.path |= kSeesPoison;
    info.always = options.on_poison == OnPoison::always;
    void* closure = info.storage;
    if (closure_size > Operation::kInlineClosure || closure_align > alignof(std::max_align_t)) {
      closure = ::operator new (closure_size, std::align_val_t{64});
      new (info.storage) void*(closure);
      info.path |= kHeapClosure;
    }
    program.bytes = add_bytes(program.bytes, options.bytes);
    return {&info, closure};
  } catch (...) {
    program.infos.pop_back();
    throw;
  }
}

/// True if no two ops could run at the same time anyway, because all are for one lane of one thread, with one priority.
/// Such a program runs in the order of its pushes, and needs no counts. (Ops that complete later do not hold their lane
/// up.)
template <class P>
bool Core<P>::is_sequence(const Recorded& program) const {
  const Captured& first = program.ops[0];
  if (lanes_.all[first.lane]->width > 1) return false;
  return std::all_of(&first, &first + program.count, [&](const Captured& op) {
    return op.lane == first.lane && op.priority() == first.priority() && !op.is(kAsync) && !op.is(kOnStream);
  });
}

/// Finds the edges: a reader follows the last writer; a writer follows all readers since, or, if there are none, the
/// last writer.
template <class P>
void Core<P>::end_capture(ProgramBase& base) {
  Recorded& program = static_cast<Recorded&>(base);
  std::vector<Info*> pushed;
  for (Info& info : program.infos)
    if (info.table) pushed.push_back(&info);
  const std::size_t n = program.count = pushed.size();
  struct Use {
    std::int64_t writer = -1;
    std::vector<std::uint32_t> readers;
    bool exclusive = false, ordered = true;
  };
  std::unordered_map<Node*, Use> uses;
  std::vector<std::vector<std::uint32_t>> edges(n);
  program.ops = std::make_unique<Captured[]>(n);
  for (std::uint32_t i = 0; i < n; ++i) {
    Captured& op = program.ops[i];
    Info& info = *pushed[i];
    info.op = &op;
    op.program = &program;
    op.info = &info;
    op.table = info.table;
    op.lane = info.lane;
    op.path = info.path | (info.table->async ? kAsync : 0);
    if (op.is(kAsync) || op.is(kOnStream)) info.rare = std::make_unique<RareParts<P>>();
    if (op.is(kOnStream))
      for (const CapturedAccess<P>& a : info.accesses) rare_of(*a.variable);
  }
  const bool sequence = n > 0 && is_sequence(program);
  for (std::uint32_t i = 0; i < n; ++i) {
    Captured& op = program.ops[i];
    const auto follow = [&](std::uint32_t before) {
      if (sequence && before + 1 != i) return;
      if (!edges[before].empty() && edges[before].back() == i) return;  // by another variable
      edges[before].push_back(i);
      ++op.predecessors;
    };
    if (sequence && i > 0) follow(i - 1);
    for (const CapturedAccess<P>& a : op.info->accesses) {
      Use& use = uses[a.variable];
      if (a.mode != AccessMode::order) use.ordered = false;
      if (a.mode == AccessMode::read) {
        if (use.writer >= 0) follow(static_cast<std::uint32_t>(use.writer));
        use.readers.push_back(i);
        continue;
      }
      use.exclusive = true;
      for (const std::uint32_t reader : use.readers) follow(reader);
      if (use.readers.empty() && use.writer >= 0) follow(static_cast<std::uint32_t>(use.writer));
      use.readers.clear();
      use.writer = i;
    }
    op.start_pending.store(op.predecessors, std::memory_order_relaxed);
    if (op.predecessors > 0) continue;
    auto at = std::find_if(program.roots.begin(), program.roots.end(),
                           [&](const auto& roots) { return roots.lane == op.lane && roots.priority == op.priority(); });
    if (at == program.roots.end()) at = program.roots.insert(at, {op.lane, op.priority(), {}});
    at->ops.push_back(&op);
  }
  for (std::uint32_t i = 0; i < n; ++i) {
    Captured& op = program.ops[i];
    op.first_successor = static_cast<std::uint32_t>(program.successors.size());
    op.successors = static_cast<std::uint32_t>(edges[i].size());
    program.successors.insert(program.successors.end(), edges[i].begin(), edges[i].end());
    if (edges[i].empty()) ++program.leaves;
  }
  program.accesses.push_back({program.variables.front().get(), AccessMode::order});
  for (const auto& [node, use] : uses)
    program.accesses.push_back({node, use.ordered     ? AccessMode::order
                                      : use.exclusive ? AccessMode::update
                                                      : AccessMode::read});
  std::sort(program.accesses.begin(), program.accesses.end(), [](const Access& a, const Access& b) {
    return locked_before(static_cast<const Node*>(a.variable), static_cast<const Node*>(b.variable));
  });
  if (program.accesses.size() > kMaxAccesses)
    throw UsageError("[capture] " + std::to_string(program.accesses.size()) + " variables; " +
                     std::to_string(kMaxAccesses) + " are the most");
}

}  // namespace sluice::detail
