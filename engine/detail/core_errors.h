// Core<P>, errors: roots, poison on variables, what tickets remember, and errors that nobody looked at.
#pragma once

#include <cstdio>

#include "sluice/engine/detail/core.h"

namespace sluice::detail {

inline constexpr std::size_t kRememberedFailures = std::size_t{1} << 16;

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

/// A new root; error_mutex_ is held.
template <class P>
ErrorRef Core<P>::new_root(ErrorKind kind, const Operation* op, std::exception_ptr cause, std::string message) {
  auto root = std::make_shared<ErrorRoot>();
  root->kind = kind;
  // One count for all engines: an op may fail with another engine's root, and keeps it.
  static std::atomic<std::uint64_t> next{1};
  root->sequence = next.fetch_add(1, std::memory_order_relaxed);
  root->operation = op ? op->name : "engine";
  root->file = op ? op->where.file_name() : "";
  root->line = op ? op->where.line() : 0;
  root->message = std::move(message);
  root->cause = std::move(cause);
  if (roots_.size() > 4096 && (roots_.size() & 1023) == 0) prune_roots();
  roots_[root->sequence] = RootEntry{root, 0, false, false};
  return root;
}

/// The error that an op meets in what it reads: of several, that of the access named first; null if none.
template <class P>
ErrorRef Core<P>::start_error(Op* op) {
  const Token<P>* first = nullptr;
  for (int i = 0; i < op->token_count; ++i) {
    const Token<P>& t = op->tokens[i];
    if (t.mode != AccessMode::read && t.mode != AccessMode::update) continue;
    if (t.variable->poison.load(std::memory_order_acquire) == Poison::none) continue;
    if (!first || t.position < first->position) first = &t;
  }
  if (!first) return nullptr;
  std::lock_guard lock(error_mutex_);
  return first->variable->error;
}

/// What becomes of a finished op: null for success, else its own new root, or the one that it was skipped for.
template <class P>
ErrorRef Core<P>::decide_error(Op* op) {
  if (op->kind != OpKind::body) return nullptr;
  const RareParts<P>& rare = *op->rare;
  if (op->skipped) return rare.start_error;
  if (op->failed || op->answered || op->device_failed) {
    const std::exception_ptr cause = rare.thrown ? rare.thrown : rare.exception ? rare.exception : rare.device_error;
    ErrorKind kind = rare.thrown ? ErrorKind::failed : rare.exception_kind;
    std::string message = cause ? message_of(cause) : "its Completion was dropped without an answer";
    try {
      if (cause) std::rethrow_exception(cause);
    } catch (const Error& e) {
      // A wait inside the body threw another op's root: it stays the root. (0: not an op's, a deadlock found.)
      if (e.root().sequence != 0) return e.root_ref();
      kind = e.root().kind;
    } catch (...) {
    }
    std::lock_guard lock(error_mutex_);
    return new_root(kind, op, cause, std::move(message));
  }
  // Issued to a device before an input's error was known: what it made of it is worth nothing.
  if (op->on_stream && op->on_poison == OnPoison::skip) return start_error(op);
  return nullptr;
}

/// Sets or clears the poison of all that the op had alone. It still has it: no other op looks meanwhile.
template <class P>
void Core<P>::apply_poison(Op* op, const ErrorRef& error) {
  bool wrote = false;
  for (int i = 0; i < op->token_count; ++i) {
    Token<P>& t = op->tokens[i];
    Node& node = *t.variable;
    if (t.mode != AccessMode::update && t.mode != AccessMode::write) continue;
    wrote = true;
    const Poison now = node.poison.load(std::memory_order_relaxed);
    if (op->kind == OpKind::recover) {
      if (now == Poison::intact) clear_poison(node);
    } else if (op->kind == OpKind::borrow) {
      if (now == Poison::none) node.has_value = true;
    } else if (error) {
      const bool whole = op->skipped || op->wrote_nothing;
      const bool torn = !whole || now == Poison::torn || !node.has_value;
      set_poison(node, error, torn);
    } else {
      if (now != Poison::none && (t.mode == AccessMode::write || t.heal)) clear_poison(node);
      // Written once: the pushers of the variable use this cache line.
      if (!node.has_value && node.poison.load(std::memory_order_relaxed) == Poison::none) node.has_value = true;
    }
  }
  if (error && !wrote && !op->skipped) {
    std::lock_guard lock(error_mutex_);
    if (auto it = roots_.find(error->sequence); it != roots_.end()) it->second.wrote_nothing = true;
  }
}

template <class P>
void Core<P>::set_poison(Node& node, const ErrorRef& root, bool torn) {
  std::lock_guard lock(error_mutex_);
  if (node.error)
    if (auto it = roots_.find(node.error->sequence); it != roots_.end()) --it->second.live_variables;
  node.error = root;
  auto [it, added] = roots_.try_emplace(root->sequence, RootEntry{root, 0, false, true});
  ++it->second.live_variables;
  node.poison.store(torn ? Poison::torn : Poison::intact, std::memory_order_release);
}

template <class P>
void Core<P>::clear_poison(Node& node) {
  std::lock_guard lock(error_mutex_);
  if (node.error)
    if (auto it = roots_.find(node.error->sequence); it != roots_.end()) --it->second.live_variables;
  node.error.reset();
  node.poison.store(Poison::none, std::memory_order_release);
}

template <class P>
void Core<P>::remember_failure(Op* op, const ErrorRef& root) {
  const std::uint64_t id = id_of(op);
  std::lock_guard lock(error_mutex_);
  failures_[id] = root;
  failure_order_.push_back(id);
  if (failure_order_.size() > kRememberedFailures) {
    failures_.erase(failure_order_.front());
    failure_order_.pop_front();
  }
}

template <class P>
ErrorRef Core<P>::failure_of(std::uint32_t index, std::uint64_t generation) {
  std::lock_guard lock(error_mutex_);
  const auto it = failures_.find((generation & 0xffffffffu) << 32 | index);
  return it == failures_.end() ? nullptr : it->second;
}

template <class P>
void Core<P>::observe(const ErrorRef& root) {
  std::lock_guard lock(error_mutex_);
  if (auto it = roots_.find(root->sequence); it != roots_.end()) it->second.observed = true;
}

template <class P>
void Core<P>::raise(const ErrorRef& root) {
  observe(root);
  throw Error(root);
}

template <class P>
ErrorRef Core<P>::error_of(const VariableBase* variable) {
  std::lock_guard lock(error_mutex_);
  return static_cast<const Node*>(variable)->error;
}

template <class P>
void Core<P>::heal(Operation* operation, const VariableBase* variable) {
  Op* op = static_cast<Op*>(operation);
  for (int i = 0; i < op->token_count; ++i)
    if (op->tokens[i].variable == variable && op->tokens[i].mode == AccessMode::update) {
      op->tokens[i].heal = true;
      return;
    }
  throw UsageError("[" + std::string(op->name) + "] heal: the op has no update access to this variable");
}

/// Roots that are observed and poison nothing any more are forgotten; error_mutex_ is held.
template <class P>
void Core<P>::prune_roots() {
  std::erase_if(roots_, [](const auto& item) {
    const RootEntry& e = item.second;
    return e.observed && e.live_variables == 0 && !e.wrote_nothing;
  });
}

/// Tells the hook of each root that no wait threw, once.
template <class P>
void Core<P>::report_unobserved() {
  std::vector<ErrorRef> silent;
  std::function<void(const ErrorRoot&)> hook;
  {
    std::lock_guard lock(error_mutex_);
    for (auto& [sequence, entry] : roots_)
      if (!std::exchange(entry.observed, true)) silent.push_back(entry.root);
    hook = unobserved_;
  }
  for (const ErrorRef& root : silent) {
    if (root->kind == ErrorKind::stopped) continue;  // who stops with `cancel` knows
    if (hook) {
      hook(*root);
    } else {
      std::fprintf(stderr, "sluice: error that nobody waited for: %s\n", root->to_string().c_str());
    }
  }
}

template <class P>
void Core<P>::clear_errors() {
  report_unobserved();
  std::lock_guard lock(error_mutex_);
  for (auto& [sequence, entry] : roots_) entry.wrote_nothing = false;
  prune_roots();
}

template <class P>
void Core<P>::on_unobserved(std::function<void(const ErrorRoot&)> hook) {
  std::lock_guard lock(error_mutex_);
  unobserved_ = std::move(hook);
}

}  // namespace sluice::detail
