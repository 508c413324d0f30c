// A copy of what is in flight in an engine: a picture from which explain and the watchdog read reasons.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "sluice/engine/operation.h"

namespace sluice::detail {

/// One access of an op. Tokens are identified by their addresses, which tell the order in a chain.
struct LookedAccess {
  const void* variable;
  const void* token;
  const void* next;  ///< the token behind it; null: none yet
  std::uint32_t op;  ///< place in Look::ops
  AccessMode mode;
  bool may_issue;  ///< everything that a stream op needs to be issued has happened
  bool has_turn;   ///< everything before it is complete
};

struct LookedOp {
  std::uint64_t id;  ///< Ticket::id
  const char* name;
  const char* file;
  std::uint32_t line;
  OpKind kind;
  std::uint16_t lane;
  bool running;                 ///< begun
  bool returned;                ///< the body has returned; the Completion or the device is still awaited
  bool on_stream;               ///< its lane is a stream
  std::uint32_t first, count;   ///< its accesses in Look::accesses, without those that are done
  std::int32_t borrower = -1;   ///< number of the thread that took the Borrow; -1: not known
  std::int64_t still_for = -1;  ///< ns since it was first seen in its present state; -1: there is no watchdog
};

/// A thread that is blocked.
struct LookedWait {
  std::uint64_t target;                   ///< id of the op, or of the wait's own record
  std::uint64_t inside;                   ///< id of the op in whose body that is; 0: outside of ops
  std::shared_ptr<CoreBase> elsewhere{};  ///< the engine that `target` belongs to, where that is another
  std::string says{};                     ///< and what the thread is doing there
};

struct LookedLane {
  std::string name;
  int width;
};

struct Look {
  std::vector<LookedOp> ops;
  std::vector<LookedAccess> accesses;
  std::unordered_map<const void*, std::string> variables;  ///< names
  std::vector<LookedWait> waits;
  std::vector<LookedLane> lanes;
  std::size_t in_flight = 0, max_ops = 0;
};

/// "frame", or "variable 17" where it has no name.
std::string name_of(const VariableBase& variable);

/// Reads reasons from a picture, and tells them in sentences.
class Story {
 public:
  explicit Story(const Look& look);

  /// Place of the op in Look::ops; -1 if it is not there.
  int find(std::uint64_t id) const;
  /// "'save' (main.cc:44, reads frame) waits for frame behind ..., which ...": down to the root cause.
  std::string of_op(int op);
  /// The same as a sentence, with how many threads outside of ops wait for it. If it is told once more it refers to the
  /// first time.
  std::string tell(int op);
  /// These ops, each behind what it waits for, if that is one of them.
  std::vector<int> in_order(const std::vector<int>& ops);
  /// Which op has the variable and why, and which ops stand behind it. Empty where no op uses the variable.
  std::string of_variable(const void* variable);
  /// The last op on the way from `op` to what all of it waits for; `op` itself if no other op delays it.
  int root(int op);
  /// Its wait in another engine; null if there is none.
  const LookedWait* elsewhere(int op) const;
  /// How many threads outside of ops wait for this op, or in this wait.
  int waiters(int op) const;
  /// "'save' (main.cc:44, reads frame)".
  std::string describe(int op) const;

 private:
  struct Cause {
    std::string says;  ///< "waits for frame behind"; of a root: "is running on cpu(0)"
    int next = -1;     ///< the op that it waits for; -1: it is a root
  };
  const Cause& cause(int op);
  Cause find_cause(int op);
  int holder(const LookedAccess& waiting);
  const std::vector<std::uint32_t>& chain(const void* variable);
  std::string accesses(const LookedOp& op) const;
  std::string place(const LookedOp& op) const;

  const Look& look_;
  std::unordered_map<std::uint64_t, int> ids_;
  std::unordered_map<const void*, std::vector<std::uint32_t>> uses_;      ///< of each variable, in no order
  std::unordered_map<const void*, std::vector<std::uint32_t>> chains_;    ///< in order, where somebody asked
  std::unordered_map<std::uint64_t, std::uint64_t> waits_inside_;         ///< op, and what its body waits for
  std::unordered_map<std::uint64_t, const LookedWait*> waits_elsewhere_;  ///< op, and its wait in another engine
  std::unordered_map<std::uint64_t, int> waits_outside_;
  std::vector<std::vector<int>> busy_;  ///< the ops that occupy each lane's threads
  std::unordered_map<int, Cause> causes_;
  std::vector<int> roots_;
  std::unordered_set<int> told_;
};

}  // namespace sluice::detail
