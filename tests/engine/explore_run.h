// Runs random programs (explore_programs.h) under the explorer, and compares what they come to with the serial model.
//
// A program is drawn from seed / kSchedulesOfOne, its schedule from the seed: some schedules of one program follow each
// other. Values, and what each pusher hands to its bodies, are relaxed atomics of the explorer: a body that begins
// without a happens-before edge from what it depends on may see them old.
//
// Programs with errors have the engine log its order, and the model runs that. The log has a lock around each push, so
// programs without errors go without: the model runs their bodies in the order in which they began, once that is seen
// to agree with the order of each pusher, and with no two conflicting bodies at once.
#pragma once

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>

#include "explore_programs.h"
#include "sluice/engine/explore/explore.h"

namespace sluice::testing {

inline constexpr std::uint64_t kSchedulesOfOne = 16;

/// What a run of a program came to.
struct ProgramResult {
  bool hang = false;
  std::string mismatch;    ///< empty: none
  std::uint64_t hash = 0;  ///< of the program and the trace
  std::uint64_t points = 0;
  bool good() const { return !hang && mismatch.empty(); }
};

class ProgramRun {
 public:
  ProgramRun(ProgramSpec& p, std::uint64_t seed)
      : p_(p), engine_(new Engine(options(p, seed))), payloads_(p.ops.size()) {
    engine_->on_unobserved_error([](const ErrorRoot&) {});
    for (int v = 0; v < kVars; ++v) {
      variables_[index(v)] = engine_->variable("v", p.valueless != v);
      addresses_[variables_[index(v)].get()] = v;
      values_[index(v)].store(mix(7, index(v)));
    }
  }

  std::FILE* told = nullptr;  ///< where to tell what happened, if anywhere

  ProgramResult go() {
    ProgramResult result;
    std::vector<std::function<void()>> pushers;
    capture();
    handles_.assign(p_.threads.size(), variables_);
    if (p_.drops) variables_[0] = {};
    for (std::size_t t = 0; t < p_.threads.size(); ++t) pushers.push_back([this, t] { pusher(t); });
    result.hang = !detail::Explorer::get().run(std::move(pushers));
    result.hash = detail::Explorer::get().trace_hash();
    result.points = detail::Explorer::get().points();
    if (result.hang) return result;
    if (detail::Explorer::get().race()) fail(std::string("a race on ") + detail::Explorer::get().race());
    // Time passed because nobody could go on: a wake-up was lost. Only the caps may need a time limit.
    if (detail::Explorer::get().stalls() && p_.max_ops == 0)
      fail("a lost wake-up: all stood until a time limit passed");
    for (ProgramOp& o : p_.ops)
      if (o.pushed) o.outcome = root_of([&] { o.ticket.wait(); });
    if (p_.errors) {
      check_log();
    } else {
      check_begun();
    }
    if (engine_->in_flight() != 0) fail("ops in flight at the end");
    result.mismatch = mismatch_;
    return result;
  }

 private:
  using Handles = std::array<Variable, kVars>;

  static EngineOptions options(const ProgramSpec& p, std::uint64_t seed) {
    return {.mode = EngineMode::explore,
            .explore_seed = seed,
            .mode_given = true,
            .threads = p.workers,
            .logical_cpus = p.lanes,
            .max_ops = p.max_ops,
            .log_order = p.errors};
  }

  void fail(const std::string& what) {
    if (mismatch_.empty()) mismatch_ = what;
  }

  static int number(const ErrorRoot& root) {
    if (root.message.starts_with("its scope")) return kScopeRoot;
    return root.operation.starts_with("op") ? std::stoi(root.operation.substr(2)) : -2;
  }
  template <class F>
  int root_of(F&& f) {
    try {
      f();
    } catch (const Error& e) {
      if (e.root().kind == ErrorKind::deadlock) fail("a wait that could end was taken for a deadlock");
      return number(e.root());
    }
    return kNoRoot;
  }

  // ---- what a variable is used by right now

  void enter(int v, bool alone) {
    int& users = users_[index(v)];
    if (alone ? users != 0 : users < 0) fail("two that conflict at once on variable " + std::to_string(v));
    users += alone ? -1 : 1;
  }
  void leave(int v, bool alone) { users_[index(v)] -= alone ? -1 : 1; }

  // ---- the program

  void pusher(std::size_t t) {
    Handles& mine = handles_[t];
    for (int id : p_.threads[t]) {
      ProgramOp& o = p_.ops[index(id)];
      push(o, mine);
      if (o.cancel && !o.recovery) o.cancelled = o.ticket.cancel();
      if (o.cancel_scope) scope_.cancel();
      if (o.wait_outside >= 0) {
        outside_[o.wait_outside].insert(
            root_of([&] { engine_->wait(mine[index(o.wait_outside)], {.help = id % 2 != 0}); }));
        for (int earlier : p_.threads[t]) {
          const ProgramOp& e = p_.ops[index(earlier)];
          if (!p_.errors && e.exclusive(o.wait_outside) && !done(e))
            fail("a wait ended before a writer that it follows");
          if (earlier == id) break;
        }
      }
      if (o.wait_ticket) {
        root_of([&] { o.ticket.wait(); });
        if (o.ran() && !o.done()) fail("a ticket's wait ended before its op");
      }
      // Holding a variable alone gives it a value, and is not in the log.
      if (o.borrow) borrow(mine, id % kVars, id % 2 != 0 && id % kVars != p_.valueless);
    }
    if (p_.wait_all && t == 0) root_of([&] { engine_->wait_all(); });
    if (p_.drops) mine[0] = {};
  }

  void borrow(Handles& mine, int v, bool alone) {
    try {
      const Borrow held = engine_->borrow(alone ? update(mine[index(v)]) : read(mine[index(v)]));
      enter(v, alone);
      values_[index(v)].load();  // others may go on here
      leave(v, alone);
    } catch (const Error& e) {
      if (e.root().kind == ErrorKind::deadlock) fail("a borrow was taken for a deadlock");
    }
  }

  bool done(const ProgramOp& o) const {
    if (o.captured.empty()) return o.done();
    return std::all_of(o.captured.begin(), o.captured.end(), [&](int id) { return p_.ops[index(id)].done(); });
  }

  /// Before the run, which the captured ops' closures outlive.
  void capture() {
    for (ProgramOp& o : p_.ops) {
      if (o.captured.empty()) continue;
      Program& program = programs_[o.captured.front()];
      if (program) continue;  // another op replays it too
      program = engine_->capture(
          [&] {
            for (int id : o.captured) push(p_.ops[index(id)], variables_);
          },
          o.name.c_str());
    }
  }

  void push(ProgramOp& o, const Handles& mine) {
    o.pushed = !o.inner;
    if (!o.captured.empty()) {
      o.ticket = engine_->replay(programs_.at(o.captured.front()));
      return;
    }
    if (o.recovery) {
      for (int v = 0; v < kVars; ++v)
        if (o.named[index(v)]) o.ticket = engine_->recover(mine[index(v)]);
      return;
    }
    std::vector<Access> accesses;
    for (int v = 0; v < kVars; ++v)
      if (o.named[index(v)]) accesses.push_back({mine[index(v)].get(), o.mode[index(v)]});
    const PushOptions how{.on = cpu(o.id % p_.lanes),
                          .priority = o.id % 3 == 0 ? 6 : kDefaultPriority,
                          .name = o.name.c_str(),
                          .on_poison = o.always        ? OnPoison::always
                                       : o.sees_poison ? OnPoison::run
                                                       : OnPoison::skip};
    payloads_[index(o.id)].store(static_cast<std::uint64_t>(o.id) + 1, std::memory_order_relaxed);
    std::shared_ptr<const Handles> handles;  // for what the body does with variables
    if (!o.nested.empty() || o.wait_inside >= 0 || o.sees_poison) handles = std::make_shared<const Handles>(mine);
    std::optional<CancelScope::Guard> guard;
    if (o.scoped) guard.emplace(scope_);
    if (o.answer == ProgramOp::at_once) {
      o.ticket = engine_->push([this, &o, handles](Context& c) { body(o, c, handles.get()); }, accesses, how);
    } else {
      o.ticket = engine_->push(
          [this, &o, handles](Context& c, Completion done) { late_body(o, c, std::move(done), handles.get()); },
          accesses, how);
    }
  }

  /// The part of a body before its values: what it was handed, what it pushes and waits for, the errors that it sees.
  std::array<int, kVars> begin(ProgramOp& o, Context& c, const Handles* handles) {
    if (o.runs++ > 0 && !o.inner) fail("a body ran twice");
    begun_.push_back(o.id);
    if (c.skip_reason()) o.met = true;
    if (payloads_[index(o.id)].load(std::memory_order_relaxed) != static_cast<std::uint64_t>(o.id) + 1)
      fail("a body did not see what its pusher had stored");
    for (int v = 0; v < kVars; ++v)
      if (o.named[index(v)]) enter(v, o.exclusive(v));
    for (int n : o.nested) {
      p_.ops[index(n)].scoped = o.scoped;  // scopes travel
      push(p_.ops[index(n)], *handles);
    }
    if (o.wait_nested)
      for (int n : o.nested) {
        root_of([&] { p_.ops[index(n)].ticket.wait(); });
        if (!p_.ops[index(n)].ticket.done()) fail("a ticket's wait inside ended before its op");
      }
    if (o.wait_inside >= 0) o.waits.push_back(root_of([&] { engine_->wait((*handles)[index(o.wait_inside)]); }));
    std::array<int, kVars> roots;
    roots.fill(kNoRoot);
    for (int v = 0; v < kVars && o.sees_poison; ++v) {
      if (!o.named[index(v)] || (o.mode[index(v)] != AccessMode::read && o.mode[index(v)] != AccessMode::update))
        continue;
      if (const ErrorRef e = c.error((*handles)[index(v)])) roots[index(v)] = number(*e);
      if (o.heals && o.mode[index(v)] == AccessMode::update) c.heal((*handles)[index(v)]);
    }
    if (o.ending == ProgramOp::throws_intact) c.wrote_nothing();
    return roots;
  }

  void compute(ProgramOp& o, const std::array<int, kVars>& roots) {
    ProgramModel::compute(
        o, roots, [&](int v) { return values_[index(v)].load(std::memory_order_relaxed); },
        [&](int v, std::uint64_t h) {
          orders_[index(v)] = mix(orders_[index(v)], h);
          if (o.mode[index(v)] != AccessMode::order && o.ending != ProgramOp::throws_intact)
            values_[index(v)].store(mix(h, index(v)), std::memory_order_relaxed);
        });
    for (int v = 0; v < kVars; ++v)
      if (o.named[index(v)]) leave(v, o.exclusive(v));
    ++o.ends;
  }

  void body(ProgramOp& o, Context& c, const Handles* handles) {
    compute(o, begin(o, c, handles));
    if (o.ending != ProgramOp::returns) throw std::runtime_error("thrown by " + o.name);
  }

  /// Another thread answers.
  void late_body(ProgramOp& o, Context& c, Completion done, const Handles* handles) {
    const std::array<int, kVars> roots = begin(o, c, handles);
    const auto held = std::make_shared<Completion>(std::move(done));
    detail::ExplorePolicy::start_substitute([this, &o, roots, held] {
      compute(o, roots);
      Completion mine = std::move(*held);
      // Where the body throws either may be first, and it is the first that counts: so both say the same.
      const bool fails = o.answer == ProgramOp::late_failure || o.ending != ProgramOp::returns;
      if (o.answer == ProgramOp::late && !fails) mine.done();
      if (o.answer != ProgramOp::late_drop && fails) mine.fail(std::make_exception_ptr(std::runtime_error("late")));
    });
    if (o.ending != ProgramOp::returns) throw std::runtime_error("thrown by " + o.name);
  }

  // ---- what it came to

  void check_log() {
    std::map<std::uint64_t, ProgramOp*> by_id;
    for (ProgramOp& o : p_.ops)
      if (o.pushed) by_id[o.ticket.id()] = &o;
    ProgramModel model(p_);
    std::map<int, std::multiset<int>> outside;
    std::map<int, std::vector<int>> inside;
    std::size_t ran = 0;
    for (const LoggedPush& logged : engine_->take_order()) {
      if (told) std::fprintf(told, "pushed: %s%s\n", logged.name, logged.by ? " by an op" : "");
      if (std::string_view(logged.name) == "borrow") continue;  // changes nothing
      if (logged.id == 0) {
        const int v = addresses_.at(logged.variable), root = model.states[index(v)].root;
        if (logged.by == 0) {
          outside[v].insert(root);
        } else {
          inside[by_id.at(logged.by)->id].push_back(root);
        }
        continue;
      }
      const auto it = by_id.find(logged.id);
      if (it == by_id.end()) return fail("the log has an op that nobody pushed");
      model.run(p_, *it->second);
      ++ran;
    }
    if (ran != by_id.size()) fail("the log lacks a push");
    if (told)
      for (const ProgramOp& o : p_.ops)
        std::fprintf(told, "%s: %d runs, outcome %d; the model: %d, %d\n", o.name.c_str(), o.runs, o.outcome,
                     model.runs[o.id], model.outcomes[o.id]);
    compare(model);
    for (const ProgramOp& o : p_.ops) {
      if (o.captured.empty() && o.runs != model.runs[o.id]) fail("whether " + o.name + " runs");
      if (!o.inner && (o.met ? !o.always || !(o.cancelled || o.scoped) : o.always && o.cancelled))
        fail("whether " + o.name + " was told of its cancel");
      if (!o.pushed || o.recovery) continue;
      if (o.outcome != model.outcomes[o.id]) fail("the outcome of " + o.name);
      if (o.waits != inside[o.id]) fail("what a wait inside " + o.name + " threw");
    }
    if (outside_ != outside) fail("what a wait of a pusher threw");
    for (int v = p_.drops ? 1 : 0; v < kVars; ++v) {
      const ErrorRef error = engine_->error(variables_[index(v)]);
      if ((error ? number(*error) : kNoRoot) != model.states[index(v)].root)
        fail("the root of variable " + std::to_string(v));
    }
    if (!p_.drops) check_aggregate(model);
    for (int v = p_.drops ? 1 : 0; v < kVars; ++v) engine_->recover(variables_[index(v)]);
    for (int v = p_.drops ? 1 : 0; v < kVars; ++v) {
      const bool torn = root_of([&] { engine_->wait(variables_[index(v)]); }) != kNoRoot;
      if (torn != (model.states[index(v)].poison == ProgramModel::State::torn))
        fail("whether variable " + std::to_string(v) + " is torn");
    }
  }

  void check_aggregate(const ProgramModel& model) {
    std::set<int> live, thrown;
    for (const auto& x : model.states)
      if (x.root != kNoRoot) live.insert(x.root);
    live.insert(model.wrote_nothing.begin(), model.wrote_nothing.end());
    try {
      engine_->wait_all();
    } catch (const AggregateError& e) {
      std::set<const ErrorRoot*> roots;
      for (const ErrorRef& root : e.roots()) {
        thrown.insert(number(*root));
        if (!roots.insert(root.get()).second) fail("a root twice in the aggregate");
      }
    }
    if (thrown != live) fail("the roots that wait_all throws");
  }

  /// The ops with bodies that an op of a pusher stands for.
  std::vector<int> parts(int id) const {
    const ProgramOp& o = p_.ops[index(id)];
    return o.captured.empty() ? std::vector<int>{id} : o.captured;
  }

  void check_begun() {
    std::map<int, std::size_t> place;
    for (std::size_t i = 0; i < begun_.size(); ++i) place[begun_[i]] = i;
    ProgramModel model(p_);
    for (const auto& thread : p_.threads)
      for (std::size_t i = 0; i < thread.size(); ++i)
        for (std::size_t j = i + 1; j < thread.size(); ++j)
          for (int a : parts(thread[i]))
            for (int b : parts(thread[j]))
              if (p_.ops[index(a)].conflicts(p_.ops[index(b)]) && place[a] > place[b])
                fail("a pusher's ops ran in another order");
    for (const ProgramOp& o : p_.ops)
      for (std::size_t j = 1; j < o.captured.size(); ++j)
        for (std::size_t i = 0; i < j; ++i) {
          const int a = o.captured[i], b = o.captured[j];
          if (p_.ops[index(a)].conflicts(p_.ops[index(b)]) && place[a] > place[b])
            fail("a program ran in another order");
        }
    for (int id : begun_) model.run(p_.ops[index(id)]);
    for (const ProgramOp& o : p_.ops) {
      if (o.pushed && !done(o)) fail(o.name + " did not end");
      if (o.outcome != kNoRoot) fail("an error of " + o.name);
    }
    compare(model);
  }

  void compare(const ProgramModel& model) {
    for (int v = 0; v < kVars; ++v) {
      const ProgramModel::State& x = model.states[index(v)];
      if (x.poison != ProgramModel::State::torn && values_[index(v)].load() != x.value)
        fail("the value of variable " + std::to_string(v));
      if (orders_[index(v)] != x.order) fail("the order on variable " + std::to_string(v));
    }
  }

  ProgramSpec& p_;
  std::unique_ptr<Engine> engine_;
  CancelScope scope_;
  Handles variables_;
  std::vector<Handles> handles_;  ///< of each pusher
  std::map<const void*, int> addresses_;
  std::array<detail::ExplorePolicy::Atomic<std::uint64_t>, kVars> values_;
  std::vector<detail::ExplorePolicy::Atomic<std::uint64_t>> payloads_;
  std::array<std::uint64_t, kVars> orders_{};
  std::array<int, kVars> users_{};
  std::vector<int> begun_;
  std::map<int, Program> programs_;  ///< by the first that was captured
  std::map<int, std::multiset<int>> outside_;
  std::string mismatch_;
};

/// One schedule of one program. After a hang what the program holds is left as it is.
inline ProgramResult run_program(std::uint64_t seed, std::FILE* told = nullptr) {
  const std::uint64_t program = seed / kSchedulesOfOne;
  auto spec = std::make_unique<ProgramSpec>(ProgramDrawing(program).program());
  auto run = std::make_unique<ProgramRun>(*spec, seed);
  run->told = told;
  ProgramResult result = run->go();
  result.hash = mix(result.hash, program);
  if (result.hang) static_cast<void>(run.release()), static_cast<void>(spec.release());
  return result;
}

}  // namespace sluice::testing
