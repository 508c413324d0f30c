#include "sluice/ndarray/imports.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>

#include "sluice/engine/detail/forks.h"
#include "sluice/ndarray/nd_array.h"
#include "sluice/ndarray/storage.h"

namespace sluice {

/// All imports of the process. Between two neighbouring addresses of the map lie the same imports, in the order in
/// which they came.
struct ImportList {
  using Address = std::pair<detail::CoreBase*, std::byte*>;  // engines do not see each other
  using Map = std::map<Address, std::vector<Import*>>;
  std::mutex& mutex = detail::process_lock(detail::ProcessLock::imports);  ///< taken after the groups' locks
  Map map;
  std::uint64_t next = 0;

  static ImportList& instance() {
    return detail::first_use([] { return new ImportList; });  // arrays of static objects may go after it would
  }

  /// Makes `address` one where a stretch begins.
  Map::iterator split(const Address& address) {
    const auto after = map.lower_bound(address);
    if (after != map.end() && after->first == address) return after;
    std::vector<Import*> here;
    if (after != map.begin() && std::prev(after)->first.first == address.first) here = std::prev(after)->second;
    return map.emplace_hint(after, address, std::move(here));
  }
  /// The imports in [begin, end), each once, in the order of their addresses.
  std::vector<Import*> find(detail::CoreBase* core, std::byte* begin, std::byte* end) {
    std::vector<Import*> found;
    if (begin == end) return found;
    auto at = map.upper_bound({core, begin});
    if (at != map.begin()) --at;
    for (; at != map.end() && at->first < Address(core, end); ++at) {
      if (at->first.first == core) found.insert(found.end(), at->second.begin(), at->second.end());
    }
    // Sorted by what does not depend on where in memory the objects are, so that every run is the same.
    std::sort(found.begin(), found.end(), [](const Import* a, const Import* b) { return a->number_ < b->number_; });
    found.erase(std::unique(found.begin(), found.end()), found.end());
    return found;
  }
  void add(Import* import) {
    const auto end = split({import->core_, import->end_});
    for (auto at = split({import->core_, import->begin_}); at != end; ++at) at->second.push_back(import);
  }
  /// Also where add() had no memory to go on.
  void remove(Import* import) noexcept {
    const Address begin{import->core_, import->begin_}, end{import->core_, import->end_};
    for (auto at = map.lower_bound(begin); at != map.end() && at->first < end; ++at) std::erase(at->second, import);
    for (const Address& address : {end, begin}) {
      const auto at = map.find(address);
      if (at == map.end()) continue;
      const bool first = at == map.begin() || std::prev(at)->first.first != address.first;
      if (first ? at->second.empty() : at->second == std::prev(at)->second) map.erase(at);
    }
  }
};

namespace {

std::mutex& of_regions() { return detail::process_lock(detail::ProcessLock::regions); }

/// A push that is nobody's in particular: outside of the thread's scopes, and never waiting at a cap.
template <class F>
void push_aside(detail::CoreBase& core, F closure, std::span<const Access> accesses, const Place& on, const char* name,
                const std::source_location& where) {
  const ScopeGuard restored;
  const detail::OutsideCapture uncaptured;
  current_scope() = ScopeState();
  const PushOptions options{.on = on, .name = name, .never_blocks = true};
  const auto [operation, place] = core.begin_push(accesses, sizeof(F), alignof(F), options, where);
  new (place) F(std::move(closure));
  core.commit_push(operation, detail::closure_table<F>);
}

/// Lets go of foreign memory on the I/O lane: the program's deleter may take its time, and the last one who named an
/// array may be a worker, or hold locks. Here and now where the engine takes no more pushes.
void release(detail::CoreBase& core, std::shared_ptr<void> owner) noexcept {
  struct Release {
    std::shared_ptr<void> owner;
    void operator()() { owner.reset(); }
  };
  try {
    push_aside(core, Release{std::move(owner)}, {}, Place(cpu(0), LaneKind::io), "release",
               std::source_location::current());
  } catch (...) {
  }
}

/// Groups whose locks are held, taken in one order.
class LockedGroups {
 public:
  using List = std::vector<Ref<ShareGroup>>;
  static void sort(List& groups) {
    std::sort(groups.begin(), groups.end(), before);
    groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
  }
  ~LockedGroups() { unlock(); }
  void lock(List groups) {
    unlock();
    groups_.reserve(groups.size());
    for (Ref<ShareGroup>& group : groups) {
      group->lock.lock();
      groups_.push_back(std::move(group));
    }
  }
  bool include(const List& groups) const {
    return std::includes(groups_.begin(), groups_.end(), groups.begin(), groups.end(), before);
  }

 private:
  static bool before(const Ref<ShareGroup>& a, const Ref<ShareGroup>& b) { return std::less<>()(&a->lock, &b->lock); }
  void unlock() {
    for (const Ref<ShareGroup>& group : groups_) group->lock.unlock();
    groups_.clear();
  }
  List groups_;
};

}  // namespace

Import::Import(std::byte* data, std::size_t bytes, std::shared_ptr<void> owner, const Variable& fallback)
    : begin_(data), end_(data + bytes), owner_(std::move(owner)), core_(fallback.get()->core) {
  ImportList& list = ImportList::instance();
  LockedGroups held;
  for (;;) {
    std::vector<Ref<ShareGroup>> groups;
    {
      std::lock_guard guard(list.mutex);
      const std::vector<Import*> overlapping = list.find(core_, begin_, end_);
      for (const Import* other : overlapping) {
        if (other->shown_) groups.emplace_back(&other->group_->root());
      }
      LockedGroups::sort(groups);
      // Several are joined while nobody is in the middle of a push on one of them.
      if (groups.size() <= 1 || held.include(groups)) try {
          enter(overlapping, groups, fallback);
          return;
        } catch (...) {
          leave();
          throw;
        }
    }
    held.lock(std::move(groups));
  }
}

/// With the list's lock.
void Import::enter(std::span<Import* const> overlapping, std::span<const Ref<ShareGroup>> groups,
                   const Variable& fallback) {
  ImportList& list = ImportList::instance();
  std::vector<Import*> sharing;
  std::copy_if(overlapping.begin(), overlapping.end(), std::back_inserter(sharing),
               [](const Import* other) { return other->shown_; });
  // One variable in common with each is enough; those that have the fewest leave the least choice.
  std::stable_sort(sharing.begin(), sharing.end(),
                   [](const Import* a, const Import* b) { return a->regions_.size() < b->regions_.size(); });
  const auto mine = [this](const Ref<ImportRegion>& region) {
    return std::find(regions_.begin(), regions_.end(), region) != regions_.end();
  };
  for (const Import* other : sharing) {
    if (std::none_of(other->regions_.begin(), other->regions_.end(), mine)) regions_.push_back(other->regions_[0]);
  }
  if (regions_.empty()) regions_.emplace_back(new ImportRegion(fallback));
  for (const Import* other : overlapping) {
    if (other->shown_) continue;
    for (const Ref<ImportRegion>& region : other->regions_) {
      if (!mine(region)) earlier_.push_back(region->variable);
    }
  }
  group_ = groups.empty() ? Ref<ShareGroup>(new ShareGroup) : groups[0];
  number_ = list.next++;
  list.add(this);
  for (const Ref<ImportRegion>& region : regions_) {
    const std::lock_guard guard(of_regions());
    region->imports.push_back(this);
  }
  for (const Ref<ShareGroup>& group : groups.subspan(groups.empty() ? 0 : 1)) group_->take_in(*group);
}

/// With the list's lock.
void Import::leave() noexcept {
  ImportList::instance().remove(this);
  leave_regions();
}

void Import::leave_regions() noexcept {
  for (const Ref<ImportRegion>& region : regions_) {
    const std::lock_guard guard(of_regions());
    std::erase(region->imports, this);
  }
}

Import::~Import() {
  {
    std::lock_guard guard(ImportList::instance().mutex);
    leave();
  }
  if (owner_) release(*core_, std::move(owner_));
}

void Import::hide() noexcept {
  std::lock_guard guard(ImportList::instance().mutex);
  shown_ = false;
  leave_regions();
}

std::vector<Variable> Import::variables() const {
  std::vector<Variable> list;
  for (const Ref<ImportRegion>& region : regions_) list.push_back(region->variable);
  return list;
}

bool Import::covers(ImportRegion& region) const {
  const std::lock_guard guard(of_regions());
  return std::all_of(region.imports.begin(), region.imports.end(),
                     [this](const Import* other) { return begin_ <= other->begin_ && other->end_ <= end_; });
}

bool Import::shared(bool recorded) const {
  for (const Ref<ImportRegion>& region : regions_) {
    const std::lock_guard guard(of_regions());
    for (const Import* other : region->imports) {
      if (other == this || !overlaps(*other)) continue;
      if (!recorded || other->recorded_.load(std::memory_order_relaxed)) return true;
    }
  }
  return false;
}

Ref<Array> import_array(Engine& engine, void* data, std::shared_ptr<void> owner, const Dims& shape, DType dtype,
                        Device device, const std::source_location& where) {
  const Variable own = engine.variable("import");
  const std::size_t bytes = static_cast<std::size_t>(shape.count()) * size_of(dtype);
  auto import = std::make_unique<Import>(static_cast<std::byte*>(data), bytes, std::move(owner), own);
  Import& it = *import;
  Ref<Buffer> buffer(new Buffer(device, std::move(import)));
  const std::vector<Variable> variables = it.variables(), earlier = it.take_earlier();
  Ref<Array> array(new Array(engine, dtype, shape, new Version(std::move(buffer), variables)));
  array->join(it.group(), 0);
  if (!earlier.empty()) {
    // Operations in flight on imports that are gone come first. Their errors are none of this array's.
    std::vector<Access> accesses;
    for (const Variable& v : earlier) accesses.push_back(order(v));
    for (const Variable& v : variables) accesses.push_back(order(v));
    const auto nothing = [] {};
    push_aside(*own.get()->core, nothing, accesses, Place(device), "import", where);
  }
  return array;
}

}  // namespace sluice
