// Core<P>, errors: roots, poison on variables, what tickets remember, and errors that nobody observed.
#pragma once

#include <cstdio>
#include <cstring>

#include "sluice/engine/detail/core.h"

namespace sluice::detail {

inline constexpr std::size_t kRememberedFailures = std::size_t{1} << 16;
inline constexpr std::size_t kKeptRoots =
    4096;  ///< how many roots that poison nothing are kept, of each kind (shed_roots)

inline std::string message_of(const std::exception_ptr& error) {
  if (!error) return "";
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return e.root().message;
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

/// Makes a new root. The caller holds errors_.mutex.
template <class P>
ErrorRef Core<P>::add_root(ErrorKind kind, const Operation* op, std::exception_ptr cause, std::string_view message) {
  auto root = std::make_shared<ErrorRoot>();
  root->kind = kind;
  // There is one count for all engines, because an op may fail with the root of another engine and keeps its number.
  static std::atomic<std::uint64_t> next{1};
  root->sequence = next.fetch_add(1, std::memory_order_relaxed);
  root->operation = !op ? "engine" : op->info && op->info->shown ? op->info->shown : op->name;
  root->file = op ? op->where.file_name() : "";
  root->line = op ? op->where.line() : 0;
  if (op) root->layer = path_of(layer_of(op)), root->device = device_of(op);
  root->message = message;
  root->cause = std::move(cause);
  look_over_roots();
  errors_.roots[root->sequence] = RootEntry{root};
  return root;
}

/// Called before one more root is kept. The caller holds errors_.mutex.
template <class P>
void Core<P>::look_over_roots() {
  if (errors_.roots.size() < errors_.many) return;
  prune_roots();
  errors_.too_many.store(true, std::memory_order_relaxed);
}

/// The entry of a root that an op ended with. The caller holds errors_.mutex. If the root is another engine's, or was
/// forgotten meanwhile, it gets a new entry; a thread has caught it, so it needs no observer here. If there is no
/// memory for the entry, that of the root which was made for this case is used.
template <class P>
auto Core<P>::entry_of(const ErrorRef& root) noexcept -> RootEntry& {
  if (const auto it = errors_.roots.find(root->sequence); it != errors_.roots.end()) return it->second;
  try {
    look_over_roots();
    return errors_.roots.try_emplace(root->sequence, RootEntry{.root = root, .observed = true}).first->second;
  } catch (const std::bad_alloc&) {
    return errors_.roots.find(errors_.lost_root->sequence)->second;
  }
}

/// As add_root; if there is no memory for it, returns the root that was made with the engine for this case.
template <class P>
ErrorRef Core<P>::new_root(ErrorKind kind, const Operation* op, std::exception_ptr cause,
                           std::string_view message) noexcept try {
  return add_root(kind, op, std::move(cause), message);
} catch (...) {
  errors_.roots.find(errors_.lost_root->sequence)->second.observed = false;
  return errors_.lost_root;
}

/// Called when the engine is made, so that an op can fail when there is no memory left.
template <class P>
void Core<P>::make_lost_root() {
  errors_.lost_root = add_root(ErrorKind::failed, nullptr, nullptr, "an op failed, and there was no memory to say how");
  errors_.roots.find(errors_.lost_root->sequence)->second.observed = true;
}

/// The variable's error. The caller holds errors_.mutex. A poisoned variable has none if there was no memory to keep
/// it.
template <class P>
ErrorRef Core<P>::error_at(const Node& node) const {
  if (const auto* rare = node.rare.load(std::memory_order_acquire); rare && rare->error) return rare->error;
  return poisoned(node.mark.load(std::memory_order_relaxed)) ? errors_.lost_root : nullptr;
}

/// The error that an op finds in what it reads; of several, that of the access named first; null if there is none.
template <class P>
ErrorRef Core<P>::start_error(Op* op) {
  const Token<P>* first = nullptr;
  for (const Token<P>& t : tokens(op)) {
    // An op that is being issued may not have its complete rights yet, and the mark may be one that an issued write
    // heals. So this is asked again when the op is over.
    if (!(t.state.load(std::memory_order_relaxed) & kMarked)) continue;
    if (t.mode != AccessMode::read && t.mode != AccessMode::update) continue;
    if (!poisoned(t.variable->mark.load(std::memory_order_relaxed))) continue;
    if (!first || t.position < first->position) first = &t;
  }
  if (!first) return nullptr;
  std::lock_guard lock(errors_.mutex);
  return error_at(*first->variable);
}

/// The result of a finished op: null for success, else its own new root, or the root that it was skipped for.
template <class P>
ErrorRef Core<P>::decide_error(Op* op) {
  const RareParts<P>& parts = rare(op);
  if (op->kind == OpKind::replay) return parts.program->first_error;
  if (op->is(kNoBody)) return nullptr;
  if (op->skipped) {
    // Other inputs may have been in flight when one was seen to fail. Now all of them are known.
    if (parts.skipped_for_input)
      if (ErrorRef first = start_error(op)) return first;
    return parts.start_error;
  }
  // The op was issued to a device before the error of an input was known: its results, and its own reports, do not
  // count.
  if (op->is(kOnStream) && !op->is(kSeesPoison))
    if (ErrorRef earlier = start_error(op)) return earlier;
  if (parts.failed()) return root_of(op, parts.cause(), parts.thrown ? ErrorKind::failed : parts.exception_kind);
  return nullptr;
}

/// A new root for an op that failed, or the existing root that it failed with.
template <class P>
ErrorRef Core<P>::root_of(const Operation* op, const std::exception_ptr& cause, ErrorKind kind) {
  std::string message;
  try {
    message = cause ? message_of(cause) : "its Completion was dropped without an answer";
    if (cause) std::rethrow_exception(cause);
  } catch (const Error& e) {
    // A wait inside the body threw the root of another op, which stays the root. (0: a deadlock, which is no op's.)
    if (e.root().sequence != 0) return e.root_ref();
    kind = e.root().kind;
  } catch (...) {
  }
  std::lock_guard lock(errors_.mutex);
  return new_root(kind, op, cause, message);
}

/// The bit that a finished op's token passes on. On the common path the variable is not touched.
template <class P>
std::uint32_t Core<P>::pass_mark(Op* op, Token<P>& t, const ErrorRef& error) {
  const bool marked = t.state.load(std::memory_order_relaxed) & kMarked;
  if (!t.exclusive() || (!marked && !error)) return 0;
  return stays_marked(*t.variable, t.mode, t.heal, op->kind, error, op->skipped || op->wrote_nothing)
             ? kLeavesMark
             : std::uint32_t{0};
}

/// Sets or clears the mark of a variable that an op had to itself and still has, so no other op looks meanwhile.
/// `whole`: the old value is untouched.
template <class P>
bool Core<P>::stays_marked(Node& node, AccessMode mode, bool heal, OpKind kind, const ErrorRef& error, bool whole) {
  const Mark now = node.mark.load(std::memory_order_relaxed);
  // Each op of a replay has settled its own marks.
  if (mode == AccessMode::order || kind == OpKind::replay) return now != Mark::none;
  if (error) {
    set_poison(node, error, !whole || now == Mark::torn || now == Mark::empty || mode == AccessMode::first);
    return true;
  }
  if (now == Mark::none) return false;
  bool clears = now == Mark::empty;  // it has a value now
  if (kind == OpKind::recover) {
    clears = now == Mark::intact;
  } else if (poisoned(now)) {
    clears = kind != OpKind::borrow && (mode == AccessMode::write || heal);
  }
  if (!clears) return true;
  if (poisoned(now)) {
    clear_poison(node);
  } else {
    node.mark.store(Mark::none, std::memory_order_relaxed);
  }
  return false;
}

template <class P>
void Core<P>::set_poison(Node& node, const ErrorRef& root, bool torn) {
  std::lock_guard lock(errors_.mutex);
  forget_poison(node);
  try {
    rare_of(node);
  } catch (const std::bad_alloc&) {  // the mark below is what counts
  }
  auto* const rare = node.rare.load(std::memory_order_relaxed);
  RootEntry& entry = entry_of(rare ? root : errors_.lost_root);
  if (rare) rare->error = entry.root;
  ++entry.live_variables;
  node.mark.store(torn ? Mark::torn : Mark::intact, std::memory_order_relaxed);
}

/// The variable's error does not count as poisoning it any more. The caller holds errors_.mutex.
template <class P>
void Core<P>::forget_poison(Node& node) {
  if (const ErrorRef error = error_at(node))
    if (auto it = errors_.roots.find(error->sequence); it != errors_.roots.end()) --it->second.live_variables;
  if (auto* rare = node.rare.load(std::memory_order_relaxed)) rare->error.reset();
}

template <class P>
void Core<P>::clear_poison(Node& node) {
  std::lock_guard lock(errors_.mutex);
  forget_poison(node);
  node.mark.store(Mark::none, std::memory_order_relaxed);
}

/// Keeps the error for tickets and, of an op that wrote nothing, for wait_all. If there is no memory for it the op's
/// record keeps it, until an op fails there again.
template <class P>
void Core<P>::note_failure(Op* op, const ErrorRef& root) {
  const std::uint64_t id = id_of(op);
  bool wrote = false;
  for (const Token<P>& t : tokens(op)) wrote = wrote || (t.mode != AccessMode::read && t.mode != AccessMode::order);
  std::lock_guard lock(errors_.mutex);
  ended_with(root);
  try {
    errors_.failures.reserve(errors_.failures.size() + 1);
    errors_.failure_order.push_back(id);
    try {
      errors_.failures[id] = root;
    } catch (...) {
      errors_.failure_order.pop_back();
      throw;
    }
    if (errors_.failure_order.size() > kRememberedFailures) {
      errors_.failures.erase(errors_.failure_order.front());
      errors_.failure_order.pop_front();
    }
  } catch (const std::bad_alloc&) {
    rare(op).failure = root;
    rare(op).failure_id = id;
  }
  if (wrote || op->skipped || op->kind == OpKind::replay) return;
  entry_of(root).wrote_nothing = true;
}

/// The root was made because an op is told why others are skipped (OnPoison::always). That is no error that a thread
/// must hear of, unless an op ends with it. The caller holds errors_.mutex.
template <class P>
void Core<P>::told(const ErrorRef& root) noexcept {
  if (auto it = errors_.roots.find(root->sequence); it != errors_.roots.end() && it->second.root != errors_.lost_root)
    it->second.told = it->second.observed = true;
}

template <class P>
void Core<P>::ended_with(const ErrorRef& root) noexcept {
  if (auto it = errors_.roots.find(root->sequence); it != errors_.roots.end() && it->second.told)
    it->second.told = it->second.observed = false;
}

template <class P>
ErrorRef Core<P>::failure_of(std::uint32_t index, std::uint64_t generation) {
  std::lock_guard lock(errors_.mutex);
  const std::uint64_t id = (generation & 0xffffffffu) << 32 | index;
  if (const auto it = errors_.failures.find(id); it != errors_.failures.end()) return it->second;
  const RareParts<P>& parts = rare(record_at(index));
  return parts.failure_id == id ? parts.failure : nullptr;
}

template <class P>
void Core<P>::observe(const ErrorRef& root) {
  std::lock_guard lock(errors_.mutex);
  if (auto it = errors_.roots.find(root->sequence); it != errors_.roots.end())
    it->second.observed = true, it->second.told = false;
}

template <class P>
void Core<P>::raise(const ErrorRef& root) {
  Error error(root);
  observe(root);
  throw error;
}

template <class P>
ErrorRef Core<P>::error_of(const VariableBase* variable) {
  refuse_forked("error");
  if (!variable) throw UsageError("[error] no variable");
  if (variable->core != this) throw UsageError("[error] the variable belongs to another engine");
  std::lock_guard lock(errors_.mutex);
  return error_at(*static_cast<const Node*>(variable));
}

template <class P>
void Core<P>::heal(Operation* operation, const VariableBase* variable) {
  if (operation->kind == OpKind::captured) {
    for (auto& a : static_cast<Info*>(operation)->accesses)
      if (a.variable == variable && a.mode == AccessMode::update) {
        a.heal = true;
        return;
      }
    throw UsageError("[" + std::string(operation->name) + "] heal: the op has no update access to this variable");
  }
  Op* op = static_cast<Op*>(operation);
  for (Token<P>& t : tokens(op))
    if (t.variable == variable && t.mode == AccessMode::update) {
      t.heal = true;
      return;
    }
  throw UsageError("[" + std::string(op->name) + "] heal: the op has no update access to this variable");
}

/// Forgets roots that are observed and poison nothing any more. The caller holds errors_.mutex.
template <class P>
void Core<P>::prune_roots() {
  std::erase_if(errors_.roots, [this](const auto& item) {
    const RootEntry& e = item.second;
    return e.observed && e.live_variables == 0 && !e.wrote_nothing && e.root != errors_.lost_root;
  });
  errors_.many = std::max(errors_.roots.size() * 5 / 4, 2 * kKeptRoots);
}

/// Keeps only the latest of the roots that poison no live variable: of those of ops that wrote nothing, which wait_all
/// throws, and of the others. Tells the hook of each root that is dropped and was never observed. Called by a thread
/// that may throw and has no lock.
template <class P>
void Core<P>::shed_roots() {
  if (errors_.shedding.exchange(true, std::memory_order_acquire))
    return;  // another thread does it, or the hook called this
  struct Over {
    std::atomic<bool>& shedding;
    ~Over() { shedding.store(false, std::memory_order_release); }
  } const over{errors_.shedding};
  errors_.too_many.store(false, std::memory_order_relaxed);
  for (const bool wrote_nothing : {false, true}) {
    const auto may_go = [&](const RootEntry& e) {
      return e.live_variables == 0 && e.wrote_nothing == wrote_nothing && e.root != errors_.lost_root;
    };
    std::size_t count = 0;
    {
      std::lock_guard lock(errors_.mutex);
      for (const auto& [sequence, entry] : errors_.roots) count += may_go(entry);
    }
    for (std::uint64_t next = 0; count > kKeptRoots; --count) {
      RootEntry gone;
      std::shared_ptr<const std::function<void(const ErrorRoot&)>> hook;
      {
        std::lock_guard lock(errors_.mutex);
        auto it = errors_.roots.lower_bound(next);
        while (it != errors_.roots.end() && !may_go(it->second)) ++it;
        if (it == errors_.roots.end()) break;
        next = it->first + 1;
        gone = std::move(it->second);
        errors_.roots.erase(it);
        hook = errors_.unobserved;
      }
      if (!gone.observed) tell_unobserved(*gone.root, hook.get());
    }
  }
  std::lock_guard lock(errors_.mutex);
  prune_roots();
}

template <class P>
void Core<P>::tell_unobserved(const ErrorRoot& root, const std::function<void(const ErrorRoot&)>* hook) {
  if (root.kind == ErrorKind::stopped) return;  // the caller of stop(cancel) knows of it
  if (hook && *hook) return (*hook)(root);
  const char* const file = std::strrchr(root.file.c_str(), '/');
  const std::string on = root.device == Device{} ? "" : " on " + to_string(root.device);
  std::fprintf(stderr, "sluice: error that nobody waited for: [%s] %s:%u%s: %s\n", root.operation.c_str(),
               file ? file + 1 : root.file.c_str(), static_cast<unsigned>(root.line), on.c_str(), root.message.c_str());
}

/// Tells the hook of each root that no wait threw, once.
template <class P>
void Core<P>::report_unobserved() {
  std::uint64_t last = 0;
  {
    std::lock_guard lock(errors_.mutex);
    last = errors_.roots.rbegin()->first;
  }
  for (std::uint64_t next = 0; next <= last;) {  // a hook may leave errors of its own
    ErrorRef root;
    std::shared_ptr<const std::function<void(const ErrorRoot&)>> hook;
    {
      std::lock_guard lock(errors_.mutex);
      auto it = errors_.roots.lower_bound(next);
      while (it != errors_.roots.end() && std::exchange(it->second.observed, true)) ++it;
      if (it == errors_.roots.end()) return;
      root = it->second.root;
      next = it->first + 1;
      hook = errors_.unobserved;
    }
    tell_unobserved(*root, hook.get());
  }
}

template <class P>
void Core<P>::clear_errors() {
  refuse_forked("clear_errors");
  report_unobserved();
  std::lock_guard lock(errors_.mutex);
  for (auto& [sequence, entry] : errors_.roots) entry.wrote_nothing = false;
  prune_roots();
}

template <class P>
void Core<P>::on_unobserved(std::function<void(const ErrorRoot&)> hook) {
  refuse_forked("on_unobserved_error");
  auto shared = std::make_shared<const std::function<void(const ErrorRoot&)>>(std::move(hook));
  std::lock_guard lock(errors_.mutex);
  errors_.unobserved.swap(shared);
}

}  // namespace sluice::detail
