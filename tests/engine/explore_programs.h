// Random programs for the explorer: at least eight ops over three variables, pushed by two or three threads, with all
// that can go on between them; and a serial model that says what each must come to.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "sluice/engine/engine.h"
#include "sluice/engine/explore/search.h"

namespace sluice::testing {

inline constexpr int kVars = 3;
inline constexpr int kLowVar = 2;  ///< in programs whose ops wait: ops of this one touch no other and never wait
inline constexpr int kNoRoot = -1;
inline constexpr int kScopeRoot = 1000;  ///< of the ops that the scope's cancel met

inline std::size_t index(int i) { return static_cast<std::size_t>(i); }
inline std::uint64_t mix(std::uint64_t h, std::uint64_t v) { return detail::Draw(h * 0x9e3779b97f4a7c15u + v)(); }

struct ProgramOp {
  enum Ending : std::uint8_t { returns, throws, throws_intact };
  enum Answer : std::uint8_t { at_once, late, late_failure, late_drop };

  int id = 0;
  bool recovery = false;
  std::array<bool, kVars> named{};
  std::array<AccessMode, kVars> mode{};
  Ending ending = returns;
  Answer answer = at_once;
  bool sees_poison = false, heals = false;
  bool always = false;  ///< it is called where it was cancelled, too
  bool cancel = false;  ///< by its pusher, after the push
  bool scoped = false;
  std::vector<int> nested;
  std::vector<int> captured;  ///< then this is the replay of a program of those, and has no body of its own
  bool inner = false;         ///< one of those
  bool wait_nested = false;
  int wait_inside = -1;
  int wait_outside = -1;      ///< by the pusher, after the push: a variable
  bool wait_ticket = false;   ///< likewise: for the op
  bool cancel_scope = false;  ///< likewise: cancels the scope
  bool borrow = false;        ///< likewise: borrows a variable for a moment
  std::string name;

  // What happened.
  Ticket ticket;
  bool pushed = false, cancelled = false;
  int runs = 0, ends = 0;  ///< of its body
  std::vector<int> waits;  ///< roots that its waits inside threw
  int outcome = kNoRoot;
  bool met = false;  ///< its body was told why it would have been skipped

  bool exclusive(int v) const { return named[index(v)] && mode[index(v)] != AccessMode::read; }
  bool ran() const { return runs > 0; }
  bool done() const { return ends == runs && ran(); }
  bool conflicts(const ProgramOp& other) const {
    for (int v = 0; v < kVars; ++v)
      if (named[index(v)] && other.named[index(v)] && (exclusive(v) || other.exclusive(v))) return true;
    return false;
  }
};

struct ProgramSpec {
  std::vector<std::vector<int>> threads;  ///< what each pushes
  std::vector<ProgramOp> ops;
  bool errors = false;    ///< some op may fail: then the engine logs the order of pushes, which the model runs
  bool waits = false;     ///< some op may wait inside
  bool drops = false;     ///< the pushers give up their handles of variable 0 when they are through
  bool wait_all = false;  ///< the first pusher ends with it
  int workers = 1, lanes = 1;
  std::size_t max_ops = 0;
  int valueless = -1;
};

/// Draws a program.
class ProgramDrawing {
 public:
  explicit ProgramDrawing(std::uint64_t seed) : draw_(seed) {}

  ProgramSpec program() {
    ProgramSpec p;
    p.errors = chance(50);
    p.waits = chance(40);
    p.drops = chance(30);
    p.wait_all = chance(20);
    p.workers = 1 + static_cast<int>(draw_.below(3));
    p.lanes = chance(25) ? 2 : 1;
    if (chance(15)) p.max_ops = 3 + draw_.below(4);
    if (p.errors && chance(20)) p.valueless = static_cast<int>(draw_.below(kVars));
    p.ops.reserve(64);
    const std::size_t pushers = 2 + draw_.below(2);
    const std::size_t total = 8 + draw_.below(5);
    p.threads.resize(pushers);
    for (std::size_t i = 0; i < total; ++i) p.threads[i % pushers].push_back(op(p, 0, false));
    if (p.errors && chance(30)) {
      for (ProgramOp& o : p.ops) o.scoped = !o.inner && o.captured.empty() && chance(50);
      p.ops[index(p.threads[draw_.below(pushers)].back())].cancel_scope = true;
    }
    return p;
  }

 private:
  bool chance(std::uint64_t percent) { return draw_.below(100) < percent; }

  int op(ProgramSpec& p, int depth, bool low_only) {
    const int id = static_cast<int>(p.ops.size());
    p.ops.emplace_back();
    ProgramOp o;
    o.id = id;
    o.name = "op" + std::to_string(id);
    const bool low = p.waits && (low_only || chance(35));
    const auto variable = [&] { return static_cast<int>(low ? kLowVar : draw_.below(p.waits ? kLowVar : kVars)); };
    if (p.errors && chance(8)) {
      o.recovery = true;
      o.name = "recover";
      const int v = variable();
      o.named[index(v)] = true;
      o.mode[index(v)] = AccessMode::update;
      p.ops[index(id)] = o;
      return id;
    }
    constexpr AccessMode modes[] = {AccessMode::read,   AccessMode::read,  AccessMode::update,
                                    AccessMode::update, AccessMode::write, AccessMode::order};
    const std::uint64_t count = draw_.below(10) ? 1 + draw_.below(3) : 0;
    for (std::uint64_t i = 0; i < count; ++i) {
      const int v = variable();
      o.named[index(v)] = true;
      o.mode[index(v)] = modes[draw_.below(6)];
    }
    if (depth == 0 && chance(15)) {
      capture(p, o, low);
      p.ops[index(id)] = o;
      return id;
    }
    endings(p, o);
    if (p.errors && depth == 0 && chance(10)) o.cancel = true;
    if (depth < 2 && !low && p.ops.size() < 14 && chance(15)) {
      o.wait_nested = p.waits && chance(50);
      const std::uint64_t n = 1 + draw_.below(2);
      for (std::uint64_t i = 0; i < n; ++i) o.nested.push_back(op(p, depth + 1, o.wait_nested));
    }
    if (p.waits && !low && chance(20)) o.wait_inside = kLowVar;
    if (depth == 0) {
      if (chance(12)) o.wait_outside = static_cast<int>(draw_.below(kVars));
      if (chance(8)) o.wait_ticket = true;
      if (chance(8)) o.borrow = true;
    }
    p.ops[index(id)] = o;
    return id;
  }

  void endings(const ProgramSpec& p, ProgramOp& o) {
    if (p.errors) {
      if (chance(15)) o.ending = chance(50) ? ProgramOp::throws : ProgramOp::throws_intact;
      if (chance(15)) o.sees_poison = true, o.heals = chance(50), o.always = o.id % 2 == 0;
    }
    if (!chance(15)) return;
    o.answer = ProgramOp::late;
    if (p.errors && chance(40)) o.answer = chance(50) ? ProgramOp::late_failure : ProgramOp::late_drop;
  }

  /// Makes `o` the replay of a new program, or with errors perhaps of one that another op replays too.
  void capture(ProgramSpec& p, ProgramOp& o, bool low) {
    o.named = {};
    if (p.errors && chance(25))
      for (const ProgramOp& other : p.ops)
        if (!other.captured.empty() && (!p.waits || other.named[kLowVar] == low)) {
          o.captured = other.captured;
          o.named = other.named, o.mode = other.mode;
        }
    if (o.captured.empty()) {
      o.cancel = p.errors && chance(10);
      const std::uint64_t n = 2 + draw_.below(3);
      for (std::uint64_t i = 0; i < n; ++i) {
        ProgramOp inner;
        inner.inner = true;
        inner.id = static_cast<int>(p.ops.size());
        inner.name = "op" + std::to_string(inner.id);
        for (std::uint64_t k = 1 + draw_.below(2); k > 0; --k) {
          const int v = static_cast<int>(low ? kLowVar : draw_.below(p.waits ? kLowVar : kVars));
          inner.named[index(v)] = true;
          inner.mode[index(v)] = chance(40) ? AccessMode::read : chance(70) ? AccessMode::update : AccessMode::write;
        }
        for (int v = 0; v < kVars; ++v) {
          if (!inner.named[index(v)]) continue;
          if (!o.named[index(v)] || inner.exclusive(v))
            o.mode[index(v)] = inner.exclusive(v) ? AccessMode::update : AccessMode::read;
          o.named[index(v)] = true;
        }
        endings(p, inner);
        o.captured.push_back(inner.id);
        p.ops.push_back(inner);
      }
    }
    if (chance(15)) o.wait_ticket = true;
  }

  detail::Draw draw_;
};

/// The program in words, for whoever looks at a failure.
inline std::string describe(const ProgramSpec& p) {
  constexpr const char* modes[] = {"read", "update", "write", "order"};
  std::string text = std::to_string(p.workers) + " workers, " + std::to_string(p.lanes) + " devices" +
                     (p.errors ? ", errors" : "") + (p.waits ? ", waits" : "") + (p.drops ? ", drops" : "") +
                     (p.wait_all ? ", wait_all" : "") + ", cap " + std::to_string(p.max_ops) + "\n";
  for (std::size_t t = 0; t < p.threads.size(); ++t) {
    text += "pusher " + std::to_string(t) + ":";
    for (int id : p.threads[t]) text += " " + std::to_string(id);
    text += "\n";
  }
  for (const ProgramOp& o : p.ops) {
    text += "  " + std::to_string(o.id) + " " + o.name;
    for (int v = 0; v < kVars; ++v)
      if (o.named[index(v)])
        text += std::string(" ") + modes[static_cast<int>(o.mode[index(v)])] + "(" + std::to_string(v) + ")";
    if (o.ending != ProgramOp::returns) text += o.ending == ProgramOp::throws ? " throws" : " throws, intact";
    if (o.answer != ProgramOp::at_once) text += " answered late (" + std::to_string(o.answer) + ")";
    if (o.sees_poison) text += o.heals ? " heals" : " sees poison";
    if (o.always) text += " always";
    if (o.cancel) text += " cancelled";
    if (o.scoped) text += " scoped";
    if (o.cancel_scope) text += " then cancels the scope";
    for (int n : o.captured) text += " replays " + std::to_string(n);
    if (o.inner) text += " captured";
    for (int n : o.nested) text += " pushes " + std::to_string(n);
    if (o.wait_nested) text += " and waits for them";
    if (o.wait_inside >= 0) text += " waits inside for " + std::to_string(o.wait_inside);
    if (o.wait_outside >= 0) text += " then waits for " + std::to_string(o.wait_outside);
    if (o.wait_ticket) text += " then for the ticket";
    if (o.borrow) text += " then borrows " + std::to_string(o.id % kVars);
    text += "\n";
  }
  return text;
}

/// The serial model.
struct ProgramModel {
  struct State {
    std::uint64_t value = 0, order = 0;
    enum : std::uint8_t { none, intact, torn } poison = none;
    int root = kNoRoot;
    bool has_value = true;
  };

  explicit ProgramModel(const ProgramSpec& p) {
    for (int v = 0; v < kVars; ++v) {
      states[index(v)].value = mix(7, index(v));
      states[index(v)].has_value = p.valueless != v;
    }
  }

  /// What a body makes of what it sees: the same code for the engine's and the model's.
  template <class Get, class Set>
  static void compute(const ProgramOp& o, const std::array<int, kVars>& roots, Get&& get, Set&& set) {
    std::uint64_t h = mix(1, index(o.id));
    for (int v = 0; v < kVars; ++v)
      if (o.named[index(v)] && (o.mode[index(v)] == AccessMode::read || o.mode[index(v)] == AccessMode::update))
        h = mix(h, roots[index(v)] == kNoRoot ? get(v) : index(roots[index(v)] + 2000));
    for (int v = 0; v < kVars; ++v)
      if (o.exclusive(v)) set(v, h);
  }

  /// All of a replay, in the order of the capture. Its outcome is that of the first that failed or was skipped.
  void run(const ProgramSpec& p, const ProgramOp& o) {
    if (o.captured.empty()) return run(o);
    outcomes[o.id] = kNoRoot;
    for (int id : o.captured) {
      run(p.ops[index(id)], o.cancelled ? o.id : kNoRoot);
      if (outcomes[o.id] == kNoRoot) outcomes[o.id] = outcomes[id];
    }
  }

  void run(const ProgramOp& o, int skipped_for = kNoRoot) {
    int error = kNoRoot;
    bool ran = true;
    if (o.recovery) {
      for (int v = 0; v < kVars; ++v)
        if (o.named[index(v)] && states[index(v)].poison == State::intact)
          states[index(v)].poison = State::none, states[index(v)].root = kNoRoot;
      return;
    }
    if (o.always) {
    } else if (skipped_for != kNoRoot) {
      error = skipped_for, ran = false;
    } else if (o.cancelled) {
      error = o.id, ran = false;
    } else if (o.scoped && o.outcome == kScopeRoot && !o.ran()) {
      error = kScopeRoot, ran = false;
    } else if (!o.sees_poison) {
      for (int v = 0; v < kVars && ran; ++v)
        if (o.named[index(v)] && (o.mode[index(v)] == AccessMode::read || o.mode[index(v)] == AccessMode::update) &&
            states[index(v)].poison != State::none)
          error = states[index(v)].root, ran = false;
    }
    if (ran) {
      std::array<int, kVars> roots;
      for (int v = 0; v < kVars; ++v) roots[index(v)] = states[index(v)].root;
      compute(
          o, roots, [&](int v) { return states[index(v)].value; },
          [&](int v, std::uint64_t h) {
            states[index(v)].order = mix(states[index(v)].order, h);
            if (o.mode[index(v)] != AccessMode::order && o.ending != ProgramOp::throws_intact)
              states[index(v)].value = mix(h, index(v));
          });
      if (o.ending != ProgramOp::returns || o.answer == ProgramOp::late_failure || o.answer == ProgramOp::late_drop)
        error = o.id;
    }
    bool wrote = false;
    for (int v = 0; v < kVars; ++v) {
      if (!o.named[index(v)] || (o.mode[index(v)] != AccessMode::update && o.mode[index(v)] != AccessMode::write))
        continue;
      State& x = states[index(v)];
      wrote = true;
      if (error != kNoRoot) {
        const bool whole = !ran || o.ending == ProgramOp::throws_intact;
        x.poison = !whole || x.poison == State::torn || !x.has_value ? State::torn : State::intact;
        x.root = error;
        continue;
      }
      if (o.mode[index(v)] == AccessMode::write || (o.sees_poison && o.heals)) x.poison = State::none, x.root = kNoRoot;
      if (x.poison == State::none) x.has_value = true;
    }
    if (error != kNoRoot && ran && !wrote) wrote_nothing.insert(error);
    runs[o.id] += ran;
    outcomes[o.id] = error;
  }

  std::array<State, kVars> states;
  std::map<int, int> outcomes;
  std::map<int, int> runs;
  std::set<int> wrote_nothing;
};

}  // namespace sluice::testing
