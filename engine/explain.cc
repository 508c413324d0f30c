// Reasons in sentences: who waits for whom, from a picture of what is in flight.
#include <algorithm>
#include <cstring>
#include <iterator>

#include "sluice/engine/detail/look.h"
#include "sluice/engine/number_text.h"

namespace sluice::detail {
namespace {

constexpr std::size_t kNamedVariables = 6, kNamedOps = 8, kHops = 12;

std::string seconds(std::int64_t ns) {
  if (ns < 1'000'000'000) return std::to_string(ns / 1'000'000) + " ms";
  return fixed_text(static_cast<double>(ns) / 1e9, 1) + " s";
}

std::string site(const LookedOp& op) {
  const char* slash = std::strrchr(op.file, '/');
  return std::string(slash ? slash + 1 : op.file) + ":" + std::to_string(op.line);
}

}  // namespace

std::string name_of(const VariableBase& variable) {
  return variable.name && *variable.name ? variable.name : "variable " + std::to_string(variable.number);
}

Story::Story(const Look& look) : look_(look), busy_(look.lanes.size()), roots_(look.ops.size(), -1) {
  for (std::size_t i = 0; i < look.ops.size(); ++i) ids_[look.ops[i].id] = static_cast<int>(i);
  for (std::uint32_t a = 0; a < look.accesses.size(); ++a) uses_[look.accesses[a].variable].push_back(a);
  for (const LookedWait& w : look.waits) {
    if (w.elsewhere) {
      waits_elsewhere_[w.inside] = &w;
    } else if (w.inside) {
      waits_inside_[w.inside] = w.target;
    } else {
      ++waits_outside_[w.target];
    }
  }
  // An op that waits in its body leaves its thread's place to a substitute.
  for (std::size_t i = 0; i < look.ops.size(); ++i) {
    const LookedOp& op = look.ops[i];
    if (op.kind == OpKind::body && op.running && !op.returned && !waits_inside_.contains(op.id) &&
        !waits_elsewhere_.contains(op.id))
      busy_[op.lane].push_back(static_cast<int>(i));
  }
  for (auto& ops : busy_)
    std::stable_sort(ops.begin(), ops.end(), [&](int a, int b) {
      return look_.ops[static_cast<std::size_t>(a)].still_for > look_.ops[static_cast<std::size_t>(b)].still_for;
    });
}

int Story::find(std::uint64_t id) const {
  const auto it = ids_.find(id);
  return it == ids_.end() ? -1 : it->second;
}

const LookedWait* Story::elsewhere(int op) const {
  const auto it = waits_elsewhere_.find(look_.ops[static_cast<std::size_t>(op)].id);
  return it == waits_elsewhere_.end() ? nullptr : it->second;
}

int Story::waiters(int op) const {
  const auto it = waits_outside_.find(look_.ops[static_cast<std::size_t>(op)].id);
  return it == waits_outside_.end() ? 0 : it->second;
}

/// The variable's tokens from the first on. The picture was not taken in one instant, so a chain may be in pieces:
/// those whose first has its turn come first.
const std::vector<std::uint32_t>& Story::chain(const void* variable) {
  const auto [it, made] = chains_.try_emplace(variable);
  const auto used = uses_.find(variable);
  if (!made || used == uses_.end()) return it->second;
  std::unordered_map<const void*, std::uint32_t> tokens;
  std::unordered_set<const void*> follow;
  for (const std::uint32_t a : used->second) tokens[look_.accesses[a].token] = a;
  for (const std::uint32_t a : used->second)
    if (look_.accesses[a].next) follow.insert(look_.accesses[a].next);
  std::vector<std::uint32_t> first;
  for (const std::uint32_t a : used->second)
    if (!follow.contains(look_.accesses[a].token)) first.push_back(a);
  std::stable_partition(first.begin(), first.end(), [&](std::uint32_t a) { return look_.accesses[a].has_turn; });
  std::unordered_set<std::uint32_t> seen;
  for (const std::uint32_t start : first) {
    std::uint32_t a = start;
    while (seen.insert(a).second) {
      it->second.push_back(a);
      const auto next = tokens.find(look_.accesses[a].next);
      if (next == tokens.end()) break;
      a = next->second;
    }
  }
  return it->second;
}

/// The first op that this access stands behind; -1 if the picture shows none.
int Story::holder(const LookedAccess& waiting) {
  for (const std::uint32_t a : chain(waiting.variable)) {
    const LookedAccess& before = look_.accesses[a];
    if (before.token == waiting.token) break;
    if (waiting.mode != AccessMode::read || before.mode != AccessMode::read) return static_cast<int>(before.op);
  }
  return -1;
}

std::string Story::place(const LookedOp& op) const { return look_.lanes[op.lane].name; }

std::string Story::accesses(const LookedOp& op) const {
  static constexpr const char* verbs[] = {"reads", "updates", "writes", "takes in order", "makes"};
  std::string text;
  std::size_t named = 0;
  for (std::size_t mode = 0; mode < std::size(verbs); ++mode) {
    std::vector<std::string> names;
    for (std::uint32_t a = op.first; a < op.first + op.count; ++a) {
      if (static_cast<std::size_t>(look_.accesses[a].mode) != mode || named == kNamedVariables) continue;
      names.push_back(look_.variables.at(look_.accesses[a].variable));
      ++named;
    }
    if (names.empty()) continue;
    text += std::string(", ") + verbs[mode];
    for (std::size_t i = 0; i < names.size(); ++i)
      text += (i == 0 ? " " : i + 1 < names.size() ? ", " : " and ") + names[i];
  }
  if (op.count > named) text += " and " + std::to_string(op.count - named) + " more";
  return text;
}

std::string Story::describe(int index) const {
  const LookedOp& op = look_.ops[static_cast<std::size_t>(index)];
  const bool of_host = op.kind == OpKind::wait || op.kind == OpKind::borrow;
  if (!of_host) return "'" + std::string(op.name) + "' (" + site(op) + accesses(op) + ")";
  const std::string variable = op.count ? look_.variables.at(look_.accesses[op.first].variable) : "a variable";
  return (op.kind == OpKind::wait ? "a wait for " : "a borrow of ") + variable + " (" + site(op) + ")";
}

Story::Cause Story::find_cause(int index) {
  const LookedOp& op = look_.ops[static_cast<std::size_t>(index)];
  if (const auto it = waits_inside_.find(op.id); op.running && it != waits_inside_.end()) {
    if (const int target = find(it->second); target >= 0)
      return {op.kind == OpKind::replay ? std::string("is blocked in the body of a captured op by")
                                        : "is running on " + place(op) + " and blocked in its body by",
              target};
  }
  if (const LookedWait* const w = elsewhere(index); op.running && w)
    return {"is running and blocked in its body by another engine" + (w->says.empty() ? "" : ", where " + w->says), -1};
  const bool issues = op.on_stream && !op.running;
  const bool ordered = op.kind != OpKind::body || !op.running || (op.on_stream && op.returned);
  if (ordered) {
    bool coming = false;
    for (std::uint32_t a = op.first; a < op.first + op.count; ++a) {
      const LookedAccess& access = look_.accesses[a];
      if (issues ? access.may_issue : access.has_turn) continue;
      coming = true;
      const int before = holder(access);
      const bool of_host = op.kind == OpKind::wait || op.kind == OpKind::borrow;  // which say for what
      if (before >= 0)
        return {of_host ? "stands behind" : "waits for " + look_.variables.at(access.variable) + " behind", before};
    }
    if (coming) return {"is about to get its turn", -1};
  }
  switch (op.kind) {
    case OpKind::wait:
      return {"is just over", -1};
    case OpKind::recover:
      return {"is just running", -1};
    case OpKind::borrow:
      return {"is held" + (op.borrower < 0 ? "" : " by the engine's thread " + std::to_string(op.borrower)) +
                  " and not released",
              -1};
    case OpKind::replay:
      return {op.running ? "is running its captured ops" : "is about to begin", -1};
    case OpKind::captured:  // has no record of its own
    case OpKind::body:
      break;
  }
  if (op.running && op.returned)
    return {op.on_stream ? "was issued to " + place(op) + " and is not completed there"
                         : "has returned, but its Completion is not answered",
            -1};
  if (op.running) return {"is running on " + place(op), -1};
  const auto& busy = busy_[op.lane];
  const int width = look_.lanes[op.lane].width;
  if (static_cast<int>(busy.size()) < width) return {"is ready and about to begin on " + place(op), -1};
  return {"is ready, but " +
              (width == 1 ? "the thread of " + place(op) + " is"
                          : "all " + std::to_string(width) + " threads of " + place(op) + " are") +
              " busy, first with",
          busy.front()};
}

const Story::Cause& Story::cause(int op) {
  const auto it = causes_.find(op);
  return it != causes_.end() ? it->second : causes_.emplace(op, find_cause(op)).first->second;
}

int Story::root(int op) {
  std::vector<int> path;
  std::unordered_set<int> seen;
  int at = op;
  while (roots_[static_cast<std::size_t>(at)] < 0 && seen.insert(at).second) {
    path.push_back(at);
    const int next = cause(at).next;
    if (next < 0) break;
    at = next;
  }
  // The last of the path, also of one that ends in a circle.
  const int last = roots_[static_cast<std::size_t>(at)] < 0 ? at : roots_[static_cast<std::size_t>(at)];
  for (const int passed : path) roots_[static_cast<std::size_t>(passed)] = last;
  return last;
}

std::string Story::of_op(int op) {
  std::string text = describe(op);
  std::unordered_set<int> seen{op};
  for (std::size_t hops = 0;; ++hops) {
    const Cause& why = cause(op);
    text += " " + why.says;
    if (why.next < 0) break;
    if (told_.contains(why.next)) {
      text += " " + describe(why.next);
      if (const int last = root(why.next); last != why.next) text += ", and in the end behind " + describe(last);
      return text + ", see above";
    }
    if (!seen.insert(why.next).second) return text + " " + describe(why.next) + " again: a circle, which can never end";
    if (hops == kHops) {
      const int last = root(op);
      std::size_t between = 0;
      for (int at = why.next; at != last && between < look_.ops.size(); at = cause(at).next) ++between;
      if (between) text += " " + std::to_string(between) + " more, the last of them behind";
      op = last;
    } else {
      op = why.next;
    }
    text += " " + describe(op) + ", which";
  }
  const std::int64_t still = look_.ops[static_cast<std::size_t>(op)].still_for;
  return still < 1'000'000 ? text : text + ", for at least " + seconds(still);
}

std::vector<int> Story::in_order(const std::vector<int>& ops) {
  std::unordered_set<int> left(ops.begin(), ops.end());
  std::vector<int> order, path;
  for (const int op : ops) {
    for (int at = op; at >= 0 && left.erase(at); at = cause(at).next) path.push_back(at);
    order.insert(order.end(), path.rbegin(), path.rend());
    path.clear();
  }
  return order;
}

std::string Story::tell(int op) {
  const int count = waiters(op);
  const std::string text = of_op(op);
  told_.insert(op);
  if (count == 0) return text + ".";
  const OpKind kind = look_.ops[static_cast<std::size_t>(op)].kind;
  const bool for_ticket = kind != OpKind::wait && kind != OpKind::borrow;
  return text +
         (count == 1 ? ". A thread outside of ops " : ". " + std::to_string(count) + " threads outside of ops ") +
         (count == 1 ? "is blocked" : "are blocked") + (for_ticket ? " until it is done." : " there.");
}

std::string Story::of_variable(const void* variable) {
  const std::vector<std::uint32_t>& list = chain(variable);
  if (list.empty()) return "";
  std::string text = std::to_string(list.size()) + (list.size() == 1 ? " op" : " ops") + " in flight. ";
  std::size_t turn = 0;
  while (turn < list.size() && turn < kNamedOps && (turn == 0 || look_.accesses[list[turn]].has_turn)) {
    text += of_op(static_cast<int>(look_.accesses[list[turn]].op)) + ". ";
    ++turn;
  }
  if (turn < list.size()) {
    const std::size_t named = std::min(list.size(), turn + kNamedOps);
    text += "Behind " + std::string(turn == 1 ? "it" : "them") + (list.size() - turn == 1 ? " waits " : " wait ");
    for (std::size_t i = turn; i < named; ++i)
      text += (i == turn              ? ""
               : i + 1 == list.size() ? " and "
                                      : ", ") +
              describe(static_cast<int>(look_.accesses[list[i]].op));
    if (named < list.size()) text += " and " + std::to_string(list.size() - named) + " more";
    text += ". ";
  }
  return text;
}

}  // namespace sluice::detail
