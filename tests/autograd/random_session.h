// Random sessions, as data: a random program (random_program.h) whose steps stand partly in checkpoints, and between
// them what fails in a kernel, what a push refuses, and recoveries, overwrites, snapshots and reads of the arrays that
// this poisons. random_session_run.h runs them.
#pragma once

#include <utility>

#include "random_program.h"

namespace sluice::testing {

struct Act {
  enum Kind {
    step,        ///< of the program
    checkpoint,  ///< the inner acts, as a function of two values; it finds the others
    // Fail when they run. They poison the value.
    spoil,         ///< an op of the program's own that throws
    spoil_intact,  ///< the same, and has written nothing
    spoil_later,   ///< fails by its answer
    write_rows,    ///< an assignment to a row that there is not
    add_rows,      ///< the same, adding
    add_bad,       ///< adds what was read from such a row
    // Throw at the push, most of them; what is in brackets says when not.
    bad_shapes,
    bad_matmul,
    bad_slice,
    write_leaf,
    write_overlap,
    backward_of_many,
    throwing_checkpoint,  ///< a checkpoint whose function throws after it has pushed
    // What comes after.
    recover,
    overwrite,  ///< fill
    own,        ///< an overwrite by an op of the program's own (refused for a part of what is recorded)
    snapshot,
    look,
  };
  Kind kind = step;
  std::size_t number = 0;    ///< of the step
  std::size_t value = 0;     ///< that it is about; the first argument of a checkpoint
  std::size_t other = 0;     ///< the second
  std::vector<Act> inner{};  ///< of a checkpoint
  static constexpr int kKinds = look + 1;
};
inline const char* const kActNames[] = {
    "step",       "checkpoint", "spoil",         "spoil_intact",     "spoil_later",
    "write_rows", "add_rows",   "add_bad",       "bad_shapes",       "bad_matmul",
    "bad_slice",  "write_leaf", "write_overlap", "backward_of_many", "throwing_checkpoint",
    "recover",    "overwrite",  "own",           "snapshot",         "look"};

/// What one thread does.
struct Part {
  Program program;
  std::vector<Act> acts;
  bool troubles = false;  ///< whether something may fail
};

struct Session {
  std::uint64_t seed = 0;
  std::vector<Part> parts;  ///< one for each thread

  std::string text() const {
    std::ostringstream out;
    for (std::size_t t = 0; t < parts.size(); ++t) {
      out << "thread " << t << '\n' << parts[t].program.text();
      write(out, parts[t].acts, 1);
    }
    return out.str();
  }

 private:
  static void write(std::ostringstream& out, const std::vector<Act>& acts, std::size_t depth) {
    for (const Act& a : acts) {
      out << std::string(2 * depth, ' ') << kActNames[a.kind];
      if (a.kind == Act::step) {
        out << ' ' << a.number;
      } else {
        out << " v" << a.value << " v" << a.other;
      }
      out << '\n';
      write(out, a.inner, depth + 1);
    }
  }
};

inline bool makes_value(Code c) { return !is_write(c) && c != Code::term; }

/// Makes a session. A quarter of them has one thread, and of the parts of all a quarter has no troubles.
class SessionMaker {
 public:
  explicit SessionMaker(std::uint64_t seed) : random_(seed * 2654435761U + 7) { session_.seed = seed; }

  Session make() {
    const std::size_t threads = 1 + below(4);
    for (std::size_t t = 0; t < threads; ++t) {
      Part part;
      part.program = Maker(session_.seed * 4 + t).make();
      part.troubles = below(4) != 0;
      values_.assign(part.program.leaves.size(), false);
      troubles_ = part.troubles;
      std::size_t at = 0;
      part.acts = acts(part.program, at, part.program.steps.size(), 0);
      session_.parts.push_back(std::move(part));
    }
    return std::move(session_);
  }

 private:
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }
  /// Rather none that every write is refused for, and rather a new one.
  std::size_t pick() {
    std::size_t v = 0;
    for (int i = 0; i < 4; ++i) {
      v = below(2) == 0 ? values_.size() - 1 - below(std::min<std::size_t>(values_.size(), 4)) : below(values_.size());
      if (values_[v]) break;
    }
    return v;
  }

  std::vector<Act> acts(const Program& program, std::size_t& at, std::size_t end, int depth) {
    std::vector<Act> list;
    while (at < end) {
      if (troubles_ && below(3) == 0) trouble(list);
      if (depth < 2 && below(6) == 0) {
        Act c{.kind = Act::checkpoint, .value = below(values_.size()), .other = below(values_.size())};
        c.inner = acts(program, at, std::min(end, at + 2 + below(6)), depth + 1);
        list.push_back(std::move(c));
        continue;
      }
      list.push_back({.kind = Act::step, .number = at});
      const Step& s = program.steps[at++];
      if (makes_value(s.code)) values_.push_back(!is_view(s.code) || (s.code != Code::broadcast && values_[s.a]));
    }
    return list;
  }

  void trouble(std::vector<Act>& list) {
    const auto kind = static_cast<Act::Kind>(Act::spoil + below(Act::kKinds - Act::spoil));
    list.push_back({.kind = kind, .value = pick()});
    // What fails is often seen to at once, so that not all that comes later is poisoned.
    const bool fails = kind >= Act::spoil && kind <= Act::add_bad;
    if (!fails || below(4) == 0) return;
    const std::size_t value = list.back().value;
    if (below(2) == 0) list.push_back({.kind = Act::look, .value = value});
    if (below(2) == 0) list.push_back({.kind = Act::recover, .value = value});
    if (below(3) != 0) list.push_back({.kind = below(4) == 0 ? Act::own : Act::overwrite, .value = value});
  }

  std::mt19937_64 random_;
  Session session_;
  std::vector<bool> values_;  ///< of each: whether writes to it are allowed
  bool troubles_ = false;
};

}  // namespace sluice::testing
