// The function templates of Engine. Included at the end of engine.h.
#pragma once

#include <string>
#include <utility>

#include "sluice/engine/engine.h"

namespace sluice {

namespace detail {
[[noreturn]] inline void refuse_null_closure(const char* name, const std::source_location& where) {
  throw UsageError("[" + std::string(name ? name : "push") + "] " + call_site(where) + ": null closure");
}
}  // namespace detail

void Engine::wait(const HasVariable auto& x, const WaitOptions& how, std::source_location where) {
  detail::each_variable_at(
      x, [&](const Variable& v) { wait_until(v, std::chrono::nanoseconds::max(), how, where); }, where);
}

bool Engine::wait_for(const HasVariable auto& x, std::chrono::nanoseconds limit, std::source_location where) {
  bool all = true;
  const auto start = std::chrono::steady_clock::now();
  detail::each_variable_at(
      x,
      [&](const Variable& v) {
        const std::chrono::nanoseconds gone = std::chrono::steady_clock::now() - start;
        const std::chrono::nanoseconds left = gone >= limit ? std::chrono::nanoseconds(0) : limit - gone;
        all = all && wait_until(v, left, WaitOptions{}, where);
      },
      where);
  return all;
}

ErrorRef Engine::error(const HasVariable auto& x, std::source_location where) const {
  ErrorRef first;
  detail::each_variable_at(
      x,
      [&](const Variable& v) {
        if (!first) first = error_of(v);
      },
      where);
  return first;
}

Ticket Engine::recover(const HasVariable auto& x, std::source_location where) {
  Ticket last;
  detail::each_variable_at(
      x, [&](const Variable& v) { last = push_recover(v, where); }, where);
  return last;
}

template <std::invocable F>
Program Engine::capture(F&& pushes, const char* name, std::source_location where) {
  detail::Capture capture(*core_, core_->begin_capture(name, where));
  std::forward<F>(pushes)();
  return capture.finish();
}

template <class F, class... As>
Ticket Engine::push_on_values(F&& body, const PushOptions& options, const As&... accesses) {
  using Closure = detail::OnValues<std::decay_t<F>, As...>;
  static_assert(detail::Body<Closure>,
                "a body takes what is listed before it, in this order: const T& of read(x), T& of update(x), write(x)");
  const std::source_location where = std::get<0>(std::tie(accesses...)).where;
  Closure closure{std::forward<F>(body), {*accesses.var...}};
  if (detail::is_null(closure.body)) detail::refuse_null_closure(options.name, where);
  const Access list[] = {accesses...};
  return push(std::move(closure), std::span<const Access>(list), options, where);
}

template <detail::Body F>
Ticket Engine::push(F&& body, std::span<const Access> accesses, const PushOptions& options,
                    std::source_location where) {
  using Closure = std::decay_t<F>;
  if (detail::is_null(body)) detail::refuse_null_closure(options.name, where);
  const auto [operation, closure] = core_->begin_push(accesses, sizeof(Closure), alignof(Closure), options, where);
  try {
    new (closure) Closure(std::forward<F>(body));
  } catch (...) {
    core_->abandon_push(operation);
    throw;
  }
  return core_->commit_push(operation, detail::closure_table<Closure>);
}

}  // namespace sluice
