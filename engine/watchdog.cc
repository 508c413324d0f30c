// The watchdog: remembers when it first saw each op as it is now, and names those that stay so for too long.
#include "sluice/engine/detail/watchdog.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iterator>

#include "sluice/engine/detail/look.h"
#include "sluice/engine/detail/record.h"
#include "sluice/engine/number_text.h"

namespace sluice::detail {
namespace {

constexpr std::size_t kReported = 200;  ///< ops named in one report

std::int64_t ticks(std::chrono::steady_clock::time_point now) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now.time_since_epoch()).count();
}

/// What of a record's word changes when its op moves.
std::uint64_t state_of(std::uint64_t word) {
  return (word & kLive) ? (word >> kGenerationShift << kGenerationShift) | (word & (kLive | kRunning)) : 0;
}

}  // namespace

std::string seconds_text(std::chrono::nanoseconds time) {
  return general_text(std::chrono::duration<double>(time).count(), 3) + " s";
}

Watchdog::Watchdog(std::shared_ptr<CoreBase> core)
    : core_(std::move(core)), process_(::getpid()), watch_(std::make_unique<Watch>()) {}

Watchdog::~Watchdog() {
  // A forked child lacks the thread, and may have its locks taken: what the thread stands in is left alone.
  if (forked()) {
    static_cast<void>(watch_.release());
    return;
  }
  watch(std::chrono::nanoseconds(0), {});
}

bool Watchdog::forked() const { return process_ != ::getpid(); }

/// What this wait of an op of `home` in another engine is for, from engine to engine. A way that comes back to the op
/// is a circle.
std::string Watchdog::follow(const LookedWait& wait, CoreBase* home) {
  static constexpr int kEngines = 8;
  std::string text;
  std::shared_ptr<CoreBase> core = wait.elsewhere;
  std::uint64_t id = wait.target;
  for (int hops = 0; hops < kEngines; ++hops) {
    const Look there = core->look();
    Story story(there);
    const int op = story.find(id);
    if (op < 0) return text + (hops ? "" : "what it waits for is just over");
    const int root = story.root(op);
    const bool back = core.get() == home && there.ops[static_cast<std::size_t>(root)].id == wait.inside;
    text += story.of_op(op);
    if (back) return text + ": a circle through several engines, which can never end";
    const LookedWait* const next = story.elsewhere(root);
    if (!next) return text;
    text += ", where ";
    id = next->target;
    core = std::shared_ptr<CoreBase>(next->elsewhere);
  }
  return text + "more engines follow";
}

/// A picture, with the times that the watchdog knows.
Look Watchdog::look(std::int64_t now) {
  Look seen = core_->look();
  if (forked()) return seen;
  for (LookedWait& wait : seen.waits)
    if (wait.elsewhere) wait.says = follow(wait, core_.get());
  std::lock_guard lock(seen_mutex_);
  for (LookedOp& op : seen.ops) {
    const std::size_t index = op.id & 0xffffffffu;
    if (index >= seen_.size()) continue;
    const Seen& known = seen_[index];
    const bool running = op.running || op.kind == OpKind::recover;
    if (known.state >> kGenerationShift == op.id >> 32 && ((known.state & kRunning) != 0) == running)
      op.still_for = std::max<std::int64_t>(now - known.since, 0);
  }
  return seen;
}

std::string Watchdog::explain(const VariableBase* variable) {
  if (!variable) throw UsageError("[explain] no variable");
  if (variable->core != core_.get()) throw UsageError("[explain] the variable belongs to another engine");
  const Look seen = look(ticks(std::chrono::steady_clock::now()));
  const std::string uses = Story(seen).of_variable(variable), value = core_->value_state(variable);
  if (uses.empty()) return name_of(*variable) + ": " + (value.starts_with("poisoned") ? value : "idle, " + value);
  return name_of(*variable) + ": " + uses + "Its value as of now: " + value + ".";
}

std::string Watchdog::explain(std::uint64_t id) {
  if (id == 0) return "the ticket of no op";
  const Look seen = look(ticks(std::chrono::steady_clock::now()));
  Story story(seen);
  const int op = story.find(id);
  if (op >= 0) return story.tell(op);
  return core_->outcome(static_cast<std::uint32_t>(id), id >> 32);
}

std::string Watchdog::overdue(std::chrono::nanoseconds limit, std::chrono::steady_clock::time_point when) {
  if (forked()) return "";
  const std::int64_t now = ticks(when);
  const std::vector<std::uint64_t> words = core_->op_words();
  bool any = false;
  {
    std::lock_guard lock(seen_mutex_);
    seen_.resize(std::max(seen_.size(), words.size()));
    for (std::size_t i = 0; i < words.size(); ++i) {
      Seen& known = seen_[i];
      if (const std::uint64_t state = state_of(words[i]); state != known.state) known = {state, now, false};
      any = any || (known.state && !known.reported && now - known.since >= limit.count());
    }
  }
  if (!any) return "";
  const Look seen = look(now);
  Story story(seen);
  const auto late = [&](int op) { return seen.ops[static_cast<std::size_t>(op)].still_for >= limit.count(); };
  std::vector<int> found;
  {
    std::lock_guard lock(seen_mutex_);
    for (int i = 0; i < static_cast<int>(seen.ops.size()); ++i) {
      const LookedOp& op = seen.ops[static_cast<std::size_t>(i)];
      const std::size_t index = op.id & 0xffffffffu;
      if (index >= seen_.size()) continue;  // in a record that there was not as this look began
      Seen& known = seen_[index];
      // Behind much work that goes on an op waits long, and nothing is wrong.
      if (known.reported || !late(i) || !late(story.root(i))) continue;
      // Nobody is behind a wait that was given up, or one that its op tells of.
      if (op.kind == OpKind::wait && story.waiters(i) == 0) continue;
      known.reported = true;
      found.push_back(i);
    }
  }
  if (found.empty()) return "";
  found = story.in_order(found);
  std::string report = std::to_string(found.size()) + (found.size() == 1 ? " op has" : " ops have") +
                       " not moved for " + seconds_text(limit);
  if (seen.in_flight >= seen.max_ops) report += ", and the cap of " + std::to_string(seen.max_ops) + " ops is reached";
  report += ".";
  for (std::size_t i = 0; i < std::min(found.size(), kReported); ++i) report += "\n  " + story.tell(found[i]);
  if (found.size() > kReported) report += "\n  And " + std::to_string(found.size() - kReported) + " more behind these.";
  return report;
}

void Watchdog::report_open(const std::string& before, const std::string& after) {
  if (forked()) return;
  const Look seen = look(ticks(std::chrono::steady_clock::now()));
  Story story(seen);
  std::vector<int> open;
  for (int i = 0; i < static_cast<int>(seen.ops.size()); ++i)
    if (seen.ops[static_cast<std::size_t>(i)].kind != OpKind::wait) open.push_back(i);
  if (open.empty()) return;
  open = story.in_order(open);
  std::string report = before + std::to_string(open.size()) + (open.size() == 1 ? " op" : " ops") + after;
  for (std::size_t i = 0; i < std::min(open.size(), kReported); ++i) report += "\n  " + story.tell(open[i]);
  if (open.size() > kReported) report += "\n  And " + std::to_string(open.size() - kReported) + " more.";
  tell(report);
}

void Watchdog::tell(const std::string& report) {
  Hook hook;
  {
    std::lock_guard lock(watch_->mutex);
    hook = watch_->hook;
  }
  if (hook) return hook(report);
  std::fprintf(stderr, "sluice: %s\n", report.c_str());
}

void Watchdog::watch(std::chrono::nanoseconds limit, Hook hook) {
  if (forked()) return;
  std::vector<std::thread> over;
  {
    std::lock_guard lock(watch_->mutex);
    const std::uint64_t turn = ++watch_->turn;
    watch_->limit = limit;
    watch_->hook = std::move(hook);
    // Called by the hook, it cannot wait for its own thread, which ends when the hook returns.
    const auto own = std::stable_partition(watch_->threads.begin(), watch_->threads.end(), [](const std::thread& t) {
      return t.get_id() == std::this_thread::get_id();
    });
    over.assign(std::make_move_iterator(own), std::make_move_iterator(watch_->threads.end()));
    watch_->threads.erase(own, watch_->threads.end());
    if (limit.count() > 0) watch_->threads.emplace_back([this, turn] { run(turn); });
  }
  watch_->changed.notify_all();
  for (std::thread& thread : over) thread.join();
}

void Watchdog::run(std::uint64_t turn) {
  std::unique_lock lock(watch_->mutex);
  while (watch_->turn == turn) {
    const std::chrono::nanoseconds limit = watch_->limit;
    lock.unlock();
    try {
      if (const std::string report = overdue(limit, std::chrono::steady_clock::now()); !report.empty()) tell(report);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "sluice: watchdog: %s\n", error.what());
    } catch (...) {
      std::fprintf(stderr, "sluice: watchdog: its hook threw\n");
    }
    lock.lock();
    watch_->changed.wait_for(lock, std::max<std::chrono::nanoseconds>(limit / 4, std::chrono::milliseconds(1)),
                             [&] { return watch_->turn != turn; });
  }
}

}  // namespace sluice::detail
