// The programs of faults_test.cc: what an engine is used for, each small, under faults.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <stdexcept>
#include <thread>

#include "faults.h"
#include "sluice/resources/providers/sim.h"
#include "support.h"

namespace sluice::testing {

inline FaultPoint bodies;

/// Runs `step`, which faults may keep from what it wants. False if they did.
template <class F>
bool attempt(F&& step) {
  try {
    step();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

/// A thread that was there before the faults, and has nothing to do with an engine until it is given something to run.
class Aside {
 public:
  Aside()
      : thread_([this] {
          for (;;) {
            state_.wait(empty);
            if (state_.load() == closed) return;
            state_.wait(filling);
            job_(of_);
            state_.store(empty);
            state_.notify_all();
          }
        }) {}
  ~Aside() {
    enter(closed);
    thread_.join();
  }
  /// Runs f() there, which lives until it has run; waits for what it was given before.
  template <class F>
  void run(F& f) {
    enter(filling);
    of_ = &f;
    job_ = [](void* of) { (*static_cast<F*>(of))(); };
    state_.store(full);
    state_.notify_all();
  }
  void wait() {
    for (int s = state_.load(); s != empty; s = state_.load()) state_.wait(s);
  }

 private:
  enum : int { empty, filling, full, closed };
  void enter(int state) {
    for (int expected = empty; !state_.compare_exchange_weak(expected, state); expected = empty) state_.wait(expected);
    state_.notify_all();
  }
  std::atomic<int> state_{empty};
  void (*job_)(void*) = nullptr;
  void* of_ = nullptr;
  std::thread thread_;
};

/// One run of a program under faults: what it pushed, and whether that ran. Nothing here allocates.
class Trial {
 public:
  explicit Trial(Engine& e) : engine(e) {
    for (auto& v : variables) v = e.variable();
  }

  template <class F>
  Ticket push(F body, std::initializer_list<Access> accesses, const PushOptions& options = {}) {
    Pushed& op = ops_.at(static_cast<std::size_t>(count_++));
    op.on_stream = options.on.given && options.on.device.kind == DeviceKind::sim;
    op.accepted = attempt([&] {
      op.ticket = engine.push(
          [&op, body] {
            if (bodies.passes()) throw std::runtime_error("the body fails");
            body();
            op.ran = true;
          },
          accesses, options);
    });
    return op.ticket;
  }
  Ticket push(std::initializer_list<Access> accesses, const PushOptions& options = {}) {
    return push([] {}, accesses, options);
  }
  /// Answered on the thread aside.
  void push_async(std::initializer_list<Access> accesses) {
    Pushed& op = ops_.at(static_cast<std::size_t>(count_++));
    op.accepted = attempt([&] {
      op.ticket = engine.push(
          [&op, this](Completion done) {
            op.completion = std::move(done);
            aside.run(op);
          },
          accesses);
    });
  }
  void wait(const Variable& v) {
    attempt([&] { engine.wait(v); });
  }
  void wait_all() {
    attempt([&] { engine.wait_all(); });
  }

  /// After the faults: what was pushed is over, each op ran or its ticket says why not, and the engine works on.
  void check() {
    attempt([&] { engine.wait_all(); });
    EXPECT_EQ(engine.in_flight(), 0u);
    EXPECT_EQ(began.load(), accepted);
    for (int i = 0; i < count_; ++i) {
      const Pushed& op = ops_[static_cast<std::size_t>(i)];
      EXPECT_TRUE(op.accepted || !op.ran) << "op " << i << " ran, and its push threw";
      if (!op.accepted) continue;
      EXPECT_TRUE(op.ticket.done()) << i;
      const bool succeeded = attempt([&] { op.ticket.wait(); });
      EXPECT_TRUE(op.ran || !succeeded) << "op " << i << " did not run, and its ticket says nothing";
      EXPECT_TRUE(!op.ran || succeeded || op.on_stream) << "op " << i << " ran";
    }
  }

  Engine& engine;
  std::array<Variable, 12> variables;
  int accepted = 0;  ///< of pushes that are not told apart
  std::atomic<int> began{0};

 private:
  struct Pushed {
    bool accepted = false;
    bool on_stream = false;  ///< then an error of an input may be known only after it ran
    std::atomic<bool> ran{false};
    Ticket ticket;
    Completion completion;
    void operator()() {
      ran = true;
      completion.done();
    }
  };
  std::array<Pushed, 64> ops_;
  int count_ = 0;

 public:
  Aside aside;
};

// ---- the programs

inline void chain(Trial& t) {
  for (int i = 0; i < 20; ++i) t.push({update(t.variables[0])});
  t.wait(t.variables[0]);
}

inline void fan(Trial& t) {
  auto& v = t.variables;
  t.push({write(v[0])});
  for (std::size_t i = 1; i < 9; ++i) t.push({read(v[0]), update(v[i])});
  t.push({update(v[0])});
  t.wait_all();
}

inline void several_variables(Trial& t) {
  for (std::size_t i = 0; i < 20; ++i)
    t.push({update(t.variables[i * 7 % 12]), read(t.variables[i * 5 % 12]), order(t.variables[i % 12])},
           {.priority = static_cast<int>(i % 8)});
  t.wait_all();
}

inline void many_accesses(Trial& t) {
  auto& v = t.variables;
  for (std::size_t i = 0; i < 8; ++i) {
    struct Large {
      char bytes[200];
      void operator()() const {}
    };
    t.push(Large{}, {read(v[0]), read(v[1]), update(v[2]), read(v[3]), read(v[4]), order(v[5]), update(v[6 + i % 3])});
  }
  t.wait(v[6]);
  t.wait_all();
}

inline void errors(Trial& t) {
  auto& v = t.variables;
  const auto fail = [] { throw std::runtime_error("thrown by a body, with a text that is not short"); };
  t.push(fail, {write(v[0]), write(v[1])});
  t.push({read(v[0]), update(v[2])});
  t.push({read(v[1]), write(v[3])}, {.on_poison = OnPoison::run});
  t.push(fail, {read(v[4])});
  t.push([] { throw 42; }, {update(v[2]), write(v[5])});
  t.push({write(v[1])});
  attempt([&] { t.engine.recover(v[2]); });
  for (auto& x : v) t.wait(x);
  t.wait_all();
  attempt([&] { t.engine.clear_errors(); });
  for (int i = 0; i < 6; ++i) t.push(fail, {});
  t.wait_all();
}

inline void waits_in_ops(Trial& t) {
  auto& v = t.variables;
  Engine& e = t.engine;
  for (std::size_t i = 0; i < 3; ++i) {
    t.push({update(v[2 * i])});
    t.push(
        [&v, &e, i] {
          e.push([] {}, {update(v[2 * i])});
          e.wait(v[2 * i]);
        },
        {update(v[2 * i + 1])});
  }
  t.wait_all();
}

inline void tickets(Trial& t) {
  auto& v = t.variables;
  for (std::size_t i = 0; i < 8; ++i) {
    const Ticket ticket = t.push({update(v[i % 2])});
    if (i % 4 == 0) attempt([&] { ticket.wait_for(std::chrono::microseconds(50)); });
    if (i % 4 == 1) attempt([&] { ticket.wait(); });
    if (i % 4 == 2) ticket.cancel();
  }
  t.wait(v[0]);
  t.wait(v[1]);
}

inline void completions(Trial& t) {
  for (std::size_t i = 0; i < 4; ++i) {
    t.push_async({update(t.variables[i % 2])});
    t.push({update(t.variables[i % 2])});
  }
  t.wait_all();
  // A Completion that is dropped.
  attempt([&] { t.engine.push([](Completion) {}, {write(t.variables[3])}); });
  t.push({read(t.variables[3])});
  t.wait(t.variables[3]);
  t.wait_all();
}

inline void borrows(Trial& t) {
  auto& v = t.variables;
  for (std::size_t i = 0; i < 3; ++i) {
    t.push({update(v[0])});
    attempt([&] {
      Borrow held = t.engine.borrow(update(v[0]));
      t.push({read(v[0]), update(v[1])});
      t.push({write(v[2])});
      t.wait(v[2]);
    });
    t.wait(v[1]);
  }
  t.wait_all();
}

inline void cancelled_scopes(Trial& t) {
  auto& v = t.variables;
  attempt([&] {
    CancelScope scope;
    {
      const CancelScope::Guard guard(scope);
      for (std::size_t i = 0; i < 8; ++i) {
        t.push({update(v[i % 3])}, {.name = "in a scope"});
        if (i == 2) t.wait(v[0]);
        if (i == 4) scope.cancel();
      }
    }
    t.push({read(v[0]), update(v[4])});
  });
  t.wait_all();
}

inline void traced(Trial& t) {
  t.engine.start_trace();
  for (std::size_t i = 0; i < 12; ++i) t.push({update(t.variables[i % 3])});
  t.wait_all();
  attempt([&] { t.engine.stop_trace(); });
}

inline void at_the_caps(Trial& t) {
  for (std::size_t i = 0; i < 30; ++i) t.push({update(t.variables[i % 5])}, {.bytes = 60 * (1 + i % 3)});
  t.wait_all();
}

inline void two_pushers(Trial& t) {
  auto second = [&] {
    for (std::size_t i = 0; i < 16; ++i)
      attempt([&] { t.engine.push([] {}, {update(t.variables[i % 2]), update(t.variables[2 + i % 3])}); });
    t.wait_all();
  };
  t.aside.run(second);
  for (std::size_t i = 0; i < 16; ++i) t.push({update(t.variables[i % 3]), read(t.variables[3])});
  t.wait_all();
  t.aside.wait();
}

inline void dropped_variables(Trial& t) {
  for (int i = 0; i < 8; ++i)
    attempt([&] {
      const Variable v = t.engine.variable();
      t.push([] { throw std::runtime_error("of a variable that nobody has any more"); }, {write(v)});
      t.push({update(v), update(t.variables[0])});
    });
  t.wait_all();
}

inline void streams(Trial& t) {
  auto& v = t.variables;
  for (std::size_t i = 0; i < 4; ++i) {
    attempt([&] {
      t.engine.push([](Context& c) { c.stream()->launch([] {}); }, {update(v[i % 2]), read(v[2])},
                    {.on = {sim(0), i % 2 ? LaneKind::compute : LaneKind::copy_in}});
    });
    t.push({update(v[i % 2])}, {.on = sim(0)});
    t.push({update(v[2])});
  }
  t.wait_all();
}

/// An engine that comes and goes under faults.
inline void short_lived(Trial& t) {
  for (const StopMode mode : {StopMode::drain, StopMode::cancel})
    attempt([&] {
      QuietEngine engine({.threads = 1});
      const Variable v = engine.variable();
      for (int i = 0; i < 4; ++i) engine.push([] {}, {update(v)});
      engine.stop(mode);
    });
  t.push({update(t.variables[0])});
  t.wait_all();
}

/// More ops at once than the first records, and than the ready queue has room for.
inline void many_at_once(Trial& t) {
  auto& v = t.variables;
  attempt([&] {
    const Borrow held = t.engine.borrow(update(v[0]));
    for (int i = 0; i < 700; ++i)
      t.accepted += attempt([&] {
        t.engine.push(
            [&t] {
              t.began.fetch_add(1);
              if (bodies.passes()) throw std::runtime_error("the body fails");
            },
            {read(v[0])}, {.priority = i % 3});
      });
  });
  t.wait_all();
}

/// Captured ops, replayed, whose bodies fail too.
inline void replays(Trial& t) {
  auto& v = t.variables;
  attempt([&] {
    const auto program = t.engine.capture([&] {
      for (std::size_t i = 0; i < 9; ++i)
        t.engine.push(
            [] {
              if (bodies.passes()) throw std::runtime_error("the body fails");
            },
            {read(v[i % 2]), update(v[2 + i % 4])}, {.priority = static_cast<int>(i % 2)});
      t.engine.push([](Completion done) { done.done(); }, {update(v[0])});
    });
    attempt([&] { t.engine.replay(program); });
    t.push({write(v[3])});
    attempt([&] { t.engine.replay(program).wait(); });
  });
  t.wait_all();
}

inline void replays_on_streams(Trial& t) {
  auto& v = t.variables;
  attempt([&] {
    const auto program = t.engine.capture([&] {
      for (std::size_t i = 0; i < 4; ++i) {
        t.engine.push(
            [](Context& c) {
              if (bodies.passes()) throw std::runtime_error("the body fails");
              c.stream()->launch([] {});
            },
            {read(v[i % 2]), update(v[2])}, {.on = sim(0)});
        t.engine.push([] {}, {read(v[2]), update(v[3])});
      }
    });
    attempt([&] { t.engine.replay(program); });
    t.push({write(v[3])});
    attempt([&] { t.engine.replay(program).wait(); });
  });
  t.wait_all();
}

struct FaultProgram {
  const char* name;
  void (*run)(Trial&);
  EngineOptions options;
};
inline void PrintTo(const FaultProgram& program, std::ostream* out) { *out << program.name; }
inline const FaultProgram programs[] = {
    {"chain", chain, {.threads = 1}},
    {"chain, serial", chain, {.mode = EngineMode::serial}},
    {"fan", fan, {.threads = 2}},
    {"several variables", several_variables, {.threads = 2, .logical_cpus = 2}},
    {"several variables, logged", several_variables, {.threads = 2, .log_order = true}},
    {"many accesses", many_accesses, {.threads = 1}},
    {"errors", errors, {.threads = 2}},
    {"errors, serial", errors, {.mode = EngineMode::serial}},
    {"waits in ops", waits_in_ops, {.threads = 1}},
    {"tickets", tickets, {.threads = 1}},
    {"completions", completions, {.threads = 1}},
    {"borrows", borrows, {.threads = 1}},
    {"cancelled scopes", cancelled_scopes, {.threads = 1}},
    {"traced", traced, {.threads = 1}},
    {"at the caps", at_the_caps, {.threads = 1, .max_ops = 4, .max_bytes = 200}},
    {"two pushers", two_pushers, {.threads = 2}},
    {"many at once", many_at_once, {.threads = 2}},
    {"replays", replays, {.threads = 2}},
    {"replays on streams", replays_on_streams, {.threads = 1, .providers = {sim_devices(1)}}},
    {"dropped variables", dropped_variables, {.threads = 1}},
    {"streams", streams, {.threads = 1, .providers = {sim_devices(1)}}},
    {"short-lived engines", short_lived, {.threads = 1}},
};

}  // namespace sluice::testing
