#include "sluice/ndarray/sharing.h"

#include <algorithm>
#include <mutex>

#include "sluice/engine/detail/forks.h"
#include "sluice/ndarray/storage.h"

namespace sluice {

namespace {
std::mutex& lists() { return detail::process_lock(detail::ProcessLock::snapshots); }
}  // namespace

ShareGroup::~ShareGroup() {
  if (ShareGroup* into = into_.load(std::memory_order_acquire)) into->drop_ref();
}

ShareGroup& ShareGroup::root() {
  ShareGroup* group = this;
  while (ShareGroup* next = group->into_.load(std::memory_order_acquire)) group = next;
  return *group;
}

void ShareGroup::take_in(ShareGroup& other) {
  const std::lock_guard guard(lists());
  snapshots_.insert(snapshots_.end(), other.snapshots_.begin(), other.snapshots_.end());
  other.snapshots_ = {};
  add_ref();
  other.into_.store(this, std::memory_order_release);
}

void ShareGroup::list_snapshot(Array* array) {
  ShareGroup& group = root();  // its lock is held, so it stays the root
  const std::lock_guard guard(lists());
  group.snapshots_.push_back(array);
}

void ShareGroup::strike_snapshot(const Ref<ShareGroup>& group, Array* array) noexcept {
  for (;;) {
    ShareGroup& root = group->root();
    const std::lock_guard guard(lists());
    if (root.into_.load(std::memory_order_acquire)) continue;  // joined to another meanwhile
    std::erase(root.snapshots_, array);
    return;
  }
}

std::vector<Ref<Array>> ShareGroup::snapshots() {
  std::vector<Ref<Array>> found;
  const std::lock_guard guard(lists());
  found.reserve(snapshots_.size());  // nothing is dropped in here: the last owner strikes the array off this list
  for (Array* array : snapshots_) {
    if (array->try_add_ref()) found.push_back(Ref<Array>::adopt(array));
  }
  return found;
}

bool ShareGroup::any_snapshot() {
  const std::lock_guard guard(lists());
  return !snapshots_.empty();
}

}  // namespace sluice
