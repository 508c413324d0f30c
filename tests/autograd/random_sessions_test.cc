// Random sessions: several threads at once, each with arrays and scopes of its own, run programs of views, writes in
// place, gradients, checkpoints, operators that fail and pushes that are refused. Whoever looks on - notes, an
// interpreter that passes all on, one that makes all in f64 too - and in serial mode the bits, the texts of errors, and
// the order of the program's own operations are the same. SLUICE_PROGRAM=n runs the n-th alone, and prints it;
// SLUICE_PROGRAM=n+k runs k from the n-th on. tests/deep.sh runs 2,000, a hundred in a process.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <latch>
#include <optional>
#include <semaphore>
#include <set>
#include <thread>
#include <unordered_map>
#include <vector>

#include "f64_shadow.h"
#include "random_session_run.h"
#include "sluice/ndarray/operation_record.h"

namespace sluice::testing {
namespace {

#ifdef SLUICE_SANITIZED
constexpr std::uint64_t kUsual = 20;
#else
constexpr std::uint64_t kUsual = 100;
#endif

enum class Looker { nobody, notes, identity, shadow, plain_checkpoints };

/// What a session did, by thread.
struct Record {
  std::vector<Seen> seen;
  std::vector<Lines> order;            ///< the thread's operations as they took effect: operator, line, layer
  std::vector<std::size_t> recovered;  ///< how many values
  std::set<std::string> roots;         ///< that wait_all throws at the end
  std::size_t failed_ops = 0;
};

/// What all sessions did, so that a generator which makes nothing of some kind is noticed.
struct Totals {
  std::atomic<std::size_t> compared{0}, close{0}, poisoned{0}, noted{0};
};
Totals totals;

class PassesOn final : public sluice::Interpreter {
 public:
  void apply(Call& call, Next next) override {
    ++calls;
    next(call);
  }
  std::atomic<std::size_t> calls{0};
};

/// The names of what was noted must be those of the log.
Lines names_of(const std::vector<OperationRecord>& records) {
  Lines names;
  for (const OperationRecord& r : records) names.push_back(r.name);
  return names;
}

/// The first difference alone: the lists are long.
void equal(const Lines& got, const Lines& wanted, const char* what, std::size_t t) {
  if (got == wanted) return;
  std::size_t i = 0;
  while (i < got.size() && i < wanted.size() && got[i] == wanted[i]) ++i;
  ADD_FAILURE() << what << " of thread " << t << ", line " << i << " of " << got.size() << " and " << wanted.size()
                << "\n  got:    " << (i < got.size() ? got[i] : "nothing")
                << "\n  wanted: " << (i < wanted.size() ? wanted[i] : "nothing");
}

/// One thread's part, in scopes of its own. `at_end` is called while all its arrays live.
void run_part(const Session& session, std::size_t t, Looker looker, const std::shared_ptr<PassesOn>& identity,
              Record& record, Lines& noted, const std::function<void()>& at_end) {
  // An error that a device finds late (docs/semantics.md, 16) comes before or after the recovery or the overwrite that
  // follows it: what fails is on the host.
  const int at = static_cast<int>(t % 2);
  const DeviceScope device(session.parts[t].troubles ? cpu(at) : test::device(at));
  const TagScope tag(t + 1);
  const LayerScope layer("thread " + std::to_string(t));
  const PriorityScope priority(static_cast<int>(t));
  SessionRun run(session.parts[t], looker == Looker::plain_checkpoints);
  const auto shadow = std::make_shared<F64Shadow>();
  {
    std::optional<InterpreterScope> scope;
    std::optional<RecordScope> notes;
    if (looker == Looker::identity) scope.emplace(identity);
    if (looker == Looker::shadow) scope.emplace(shadow);
    if (looker == Looker::notes) notes.emplace();
    run.run();
    shadow->clear();
    if (notes) noted = names_of(notes->records());
  }
  totals.compared += shadow->compared, totals.close += shadow->close, totals.poisoned += shadow->poisoned;
  record.seen[t] = std::move(run.seen);
  at_end();
}

/// Threads for all sessions, which are as long-lived as those of most programs.
class Threads {
 public:
  static constexpr std::size_t kThreads = 4;
  Threads() {
    for (std::size_t t = 0; t < kThreads; ++t) threads_.emplace_back([this, t] { work(t); });
  }
  ~Threads() {
    ending_ = true;
    for (std::size_t t = 0; t < kThreads; ++t) begun_[t].release();
    for (std::thread& t : threads_) t.join();
  }
  /// f runs on thread t. wait(t) comes before the next.
  void begin(std::size_t t, std::function<void()> f) {
    work_[t] = std::move(f);
    begun_[t].release();
  }
  void wait(std::size_t t) { done_[t].acquire(); }

 private:
  void work(std::size_t t) {
    for (;;) {
      begun_[t].acquire();
      if (ending_) return;
      work_[t]();
      done_[t].release();
    }
  }
  std::array<std::function<void()>, kThreads> work_;
  using S = std::binary_semaphore;
  std::array<S, kThreads> begun_{S(0), S(0), S(0), S(0)}, done_{S(0), S(0), S(0), S(0)};
  std::atomic<bool> ending_{false};
  std::vector<std::thread> threads_;
};

Record run(Engine& engine, Threads& pushers, const Session& session, Looker looker) {
  const std::size_t threads = session.parts.size();
  Record record;
  record.seen.resize(threads), record.order.resize(threads);
  std::vector<Lines> noted(threads);
  const auto identity = std::make_shared<PassesOn>();
  (void)engine.take_order();
  engine.start_trace();
  std::latch begin(static_cast<std::ptrdiff_t>(threads)), computed(static_cast<std::ptrdiff_t>(threads) + 1);
  std::latch looked(1);
  for (std::size_t t = 0; t < threads; ++t) {
    pushers.begin(t, [&, t] {
      begin.arrive_and_wait();
      run_part(session, t, looker, identity, record, noted[t], [&] {
        computed.arrive_and_wait();
        looked.wait();
      });
    });
  }
  computed.arrive_and_wait();
  try {
    engine.wait_all();
  } catch (const AggregateError& e) {
    for (const ErrorRef& root : e.roots()) record.roots.insert(root->to_string());
  }
  looked.count_down();
  for (std::size_t t = 0; t < threads; ++t) pushers.wait(t);
  try {
    engine.wait_all();
  } catch (const AggregateError&) {  // what they were, roots says
  }
  engine.clear_errors();

  std::unordered_map<std::uint64_t, TraceEvent> events;
  for (TraceEvent& e : engine.stop_trace()) events.emplace(e.id, std::move(e));
  std::vector<Lines> names(threads);
  for (const LoggedPush& p : engine.take_order()) {
    const auto at = events.find(p.id);
    if (p.id == 0 || at == events.end()) continue;
    const TraceEvent& e = at->second;
    record.failed_ops += e.failed;
    if (e.tag < 1 || e.tag > threads) continue;
    const std::string_view name = p.name;  // the engine's own are not noted
    if (name != "recomputation" && name != "recover") names[e.tag - 1].push_back(p.name);
    record.order[e.tag - 1].push_back(std::string(p.name) + " " + e.file + ":" + std::to_string(e.line) + " in " +
                                      e.layer + (e.failed ? " failed" : ""));
  }
  for (std::size_t t = 0; looker == Looker::notes && t < threads; ++t) {
    totals.noted += noted[t].size();
    equal(noted[t], names[t], "what was noted, beside the log,", t);
  }
  EXPECT_TRUE(looker != Looker::identity || identity->calls > 0);
  return record;
}

/// The shadow keeps results that the program drops, and with them the tape: more values are held, and copied before
/// writes.
Lines without_copies(Lines order) {
  std::erase_if(order, [](const std::string& l) { return l.starts_with("copy on write ") || l.starts_with("copy "); });
  return order;
}

/// Without copies, and without a word on which of them failed.
Lines names_alone(const Lines& order) {
  Lines names = without_copies(order);
  for (std::string& l : names) {
    if (l.ends_with(" failed")) l.erase(l.size() - 7);
  }
  return names;
}

bool recovers(const std::vector<Act>& acts) {
  return std::any_of(acts.begin(), acts.end(),
                     [](const Act& a) { return a.kind == Act::recover || recovers(a.inner); });
}

void equal(const Session& session, Looker looker, const Record& got, const Record& wanted) {
  const bool keeps = looker == Looker::shadow;
  for (std::size_t t = 0; t < wanted.seen.size(); ++t) {
    // A call of a checkpoint's function that fails fails once more when it is called again: another root.
    if (looker == Looker::plain_checkpoints && session.parts[t].troubles) continue;
    equal(got.seen[t].lines, wanted.seen[t].lines, "what was seen", t);
    if (looker == Looker::plain_checkpoints) continue;
    // A recovery clears the poison of the version that a checkpoint has found too, where the array has still that one,
    // and the second call then sees a value where the first saw poison. More versions are held beside the shadow, so
    // that an array may have another by then (session 1086).
    if (keeps && recovers(session.parts[t].acts)) {
      equal(names_alone(got.order[t]), names_alone(wanted.order[t]), "the order", t);
      continue;
    }
    equal(got.seen[t].again, wanted.seen[t].again, "what second calls of checkpoints saw", t);
    equal(keeps ? without_copies(got.order[t]) : got.order[t],
          keeps ? without_copies(wanted.order[t]) : wanted.order[t], "the order", t);
  }
  if (looker == Looker::shadow) {
    EXPECT_TRUE(std::includes(got.roots.begin(), got.roots.end(), wanted.roots.begin(), wanted.roots.end()));
  } else if (looker != Looker::plain_checkpoints) {
    EXPECT_EQ(got.roots, wanted.roots);
  }
}

TEST(RandomPrograms, OfThreadsThatFailHaveOneMeaningWhoeverLooksOn) {
  const char* const asked = std::getenv("SLUICE_PROGRAM");
  char* end_of_first = nullptr;
  const std::uint64_t first = asked ? std::strtoull(asked, &end_of_first, 10) : 1;
  const bool several = asked && *end_of_first == '+', one = asked && !several;
  const std::uint64_t count = several              ? std::strtoull(end_of_first + 1, nullptr, 10)
                              : one                ? 1
                              : test::on_streams() ? 10
                                                   : kUsual;
  std::cout << "sessions " << first << " to " << first + count - 1 << "; SLUICE_PROGRAM=n runs the n-th\n";
  struct Mode {
    const char* name;
    int threads;
    EngineMode mode;
  };
  const Mode modes[] = {{"2 threads", 2, EngineMode::threaded},
                        {"4 threads", 4, EngineMode::threaded},
                        {"serial", 1, EngineMode::serial}};
  const std::pair<const char*, Looker> lookers[] = {{"nobody", Looker::nobody},
                                                    {"notes", Looker::notes},
                                                    {"an interpreter that passes on", Looker::identity},
                                                    {"a shadow in f64", Looker::shadow},
                                                    {"no checkpoints", Looker::plain_checkpoints}};
  std::size_t failed = 0, poisoned_lines = 0, refused = 0, threads = 0;
  Threads pushers;
  constexpr std::uint64_t kAtOnce = 100;
  for (std::uint64_t start = first; start < first + count && !HasFailure(); start += kAtOnce) {
    const std::uint64_t end = std::min(first + count, start + kAtOnce);
    std::vector<Record> wanted;
    for (const Mode& mode : modes) {
      test::DefaultEngine made(
          {.mode = mode.mode, .mode_given = true, .threads = mode.threads, .logical_cpus = 2, .log_order = true});
      made.engine().on_unobserved_error([](const ErrorRoot&) {});
      for (std::uint64_t seed = start; seed < end && !HasFailure(); ++seed) {
        const Session session = SessionMaker(seed).make();
        if (one && &mode == modes) std::cout << session.text();
        if (&mode == modes) {
          wanted.push_back(run(made.engine(), pushers, session, Looker::nobody));
          const Record& r = wanted.back();
          failed += r.failed_ops, threads += r.seen.size();
          for (const Seen& s : r.seen) {
            for (const std::string& l : s.lines) {
              poisoned_lines += l.find("poisoned: ") != l.npos;
              refused += l.find(" threw: ") != l.npos;
              const bool other = l.find("computed again") != l.npos || l.find("another operator than") != l.npos;
              EXPECT_FALSE(other) << "session " << seed << ": " << l;
              if (one) std::cout << l << '\n';
            }
          }
        }
        for (const auto& [name, looker] : lookers) {
          // With other threads once, and in serial mode without what makes no operations.
          if (mode.threads == 4 && looker != Looker::nobody) continue;
          if (mode.threads == 1 && (looker == Looker::notes || looker == Looker::plain_checkpoints)) continue;
          SCOPED_TRACE("session " + std::to_string(seed) + ", " + mode.name + ", " + name);
          equal(session, looker, run(made.engine(), pushers, session, looker), wanted[seed - start]);
        }
        if (HasFailure()) std::cout << session.text();
      }
    }
  }
  std::cout << threads << " parts of threads, " << failed << " operations that failed or were skipped, "
            << poisoned_lines << " reads of poison, " << refused << " pushes refused, " << totals.noted
            << " operations noted, " << totals.close << " of " << totals.compared << " results near those in f64 ("
            << totals.poisoned << " poisoned)\n";
}

}  // namespace
}  // namespace sluice::testing
