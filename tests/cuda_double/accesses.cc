#include "accesses.h"

#include <link.h>

#include <algorithm>

#include "grid.h"

namespace cuda_double {

struct Span {
  std::uintptr_t begin, end;
  bool holds(std::uintptr_t at, std::size_t bytes) const { return at >= begin && at + bytes <= end; }
};

/// What the program's files have in memory: thread-local variables of the calling thread, which stand for shared
/// memory, and everything else, of which kernels read constants.
struct Modules {
  std::vector<Span> locals, images;
};

namespace {

constexpr std::uintptr_t kStack = std::uintptr_t{256}
                                  << 10;  // a fiber's (engine/explore/fiber.cc); what lies next to it is not

const Modules& modules() {
  thread_local Modules found;
  thread_local unsigned long long added = ~0ull;
  const auto look = [](dl_phdr_info* info, std::size_t, void* data) {
    auto& to = *static_cast<Modules*>(data);
    for (int i = 0; i < info->dlpi_phnum; ++i) {
      const auto& part = info->dlpi_phdr[i];
      if (part.p_type == PT_TLS && info->dlpi_tls_data) {
        const auto begin = reinterpret_cast<std::uintptr_t>(info->dlpi_tls_data);
        to.locals.push_back({begin, begin + part.p_memsz});
      }
      if (part.p_type == PT_LOAD) {
        to.images.push_back({info->dlpi_addr + part.p_vaddr, info->dlpi_addr + part.p_vaddr + part.p_memsz});
      }
    }
    return 0;
  };
  // Another file may have been loaded since.
  unsigned long long now = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        *static_cast<unsigned long long*>(data) = info->dlpi_adds;
        return 1;
      },
      &now);
  if (now != added) {
    found = {};
    dl_iterate_phdr(look, &found);
    added = now;
  }
  return found;
}

SharedRaces& races_here() {
  thread_local SharedRaces races;
  return races;
}

bool in_any(const std::vector<Span>& spans, std::uintptr_t at, std::size_t bytes) {
  return std::any_of(spans.begin(), spans.end(), [&](const Span& s) { return s.holds(at, bytes); });
}

}  // namespace

Accesses::Accesses(Running& running) : running_(running), modules_(modules()), races_(races_here()) {
  const Grid& grid = running.grid;
  for (const sluice::MemoryUse& use : grid.uses) {
    if (!use.begin || use.bytes == 0) continue;
    const auto begin = reinterpret_cast<std::uintptr_t>(detail::resolve(use.begin));
    allowed_.push_back({begin, begin + use.bytes, use.writes});
  }
  // What may be written comes first: it may be read, too.
  std::stable_sort(allowed_.begin(), allowed_.end(),
                   [](const Allowed& a, const Allowed& b) { return a.writes > b.writes; });
  arguments_begin_ = reinterpret_cast<std::uintptr_t>(grid.launch.arguments.get());
  arguments_end_ = arguments_begin_ + grid.launch.stored_bytes;
}

void Accesses::set_stack(const void* frame) {
  const auto at = reinterpret_cast<std::uintptr_t>(frame);
  stack_begin_ = at - kStack;
  stack_end_ = at;
}

std::string Accesses::in_words(std::size_t bytes, Kind kind) const {
  return std::string(kind == Kind::read ? "reads " : "writes ") + std::to_string(bytes) + " bytes";
}

void Accesses::touch(const void* address, std::size_t bytes, Kind kind, bool aligned) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  if (aligned && at % bytes != 0) {
    running_.report("misaligned", in_words(bytes, kind) + " at an address that is not a multiple of that");
    running_.end();  // the host's own instructions may fault as a card's do
  }
  if (last_ < allowed_.size()) {
    const Allowed& a = allowed_[last_];
    if (at >= a.begin && at + bytes <= a.end && (kind == Kind::read || a.writes)) return;
  }
  for (std::size_t i = 0; i < allowed_.size(); ++i) {
    const Allowed& a = allowed_[i];
    if (at < a.begin || at + bytes > a.end || (kind != Kind::read && !a.writes)) continue;
    last_ = i;
    return;
  }
  touch_elsewhere(at, bytes, kind);
}

void Accesses::touch_elsewhere(std::uintptr_t at, std::size_t bytes, Kind kind) {
  // First, because what counts as the stack here may reach into the memory beside it.
  const auto dynamic = reinterpret_cast<std::uintptr_t>(running_.dynamic_shared());
  const bool in_dynamic = dynamic != 0 && at >= dynamic && at + bytes <= dynamic + running_.dynamic_bytes();
  if (in_dynamic || in_any(modules_.locals, at, bytes)) {
    const char* const race = races_.touch(at, bytes, running_.number, kind == Kind::read, kind == Kind::atomic);
    if (race) running_.report(race, in_words(bytes, kind) + " of shared memory " + race);
    return;
  }
  if (at >= stack_begin_ && at + bytes <= stack_end_) return;
  if (at >= arguments_begin_ && at + bytes <= arguments_end_) return;
  const auto* const address = reinterpret_cast<const void*>(at);
  const auto& devices = running_.grid.world.core->devices;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    if (const void* const handle = devices[i]->memory.handle(address)) {
      report_out_of_bounds(bytes, kind, handle, static_cast<int>(i));
      running_.end();
    }
    if (devices[i]->memory.holds(address)) {
      running_.report("a pointer", in_words(bytes, kind) +
                                       " through a pointer that the launch did not see: it is not "
                                       "an argument, and no each_pointer() names it");
      running_.end();
    }
  }
  if (kind == Kind::read && in_any(modules_.images, at, bytes)) return;
  running_.report("memory of the host", in_words(bytes, kind) + " of memory of the host");
  running_.end();
}

void Accesses::report_out_of_bounds(std::size_t bytes, Kind kind, const void* handle, int device) {
  const auto [begin, size] = running_.grid.world.core->devices[static_cast<std::size_t>(device)]->memory.block(handle);
  const auto* const byte = static_cast<const std::byte*>(handle);
  const auto inside = [&](const sluice::MemoryUse& use) {
    const auto* const first = static_cast<const std::byte*>(use.begin);
    return byte >= first && byte + bytes <= first + use.bytes;
  };
  const std::vector<sluice::MemoryUse>& uses = running_.grid.uses;
  const std::string does = in_words(bytes, kind);
  if (std::any_of(uses.begin(), uses.end(), inside)) {
    return running_.report("a write", does + " of what it was to read only");
  }
  // The use that is nearest before it.
  const sluice::MemoryUse* nearest = nullptr;
  for (const sluice::MemoryUse& use : uses) {
    const auto* const first = static_cast<const std::byte*>(use.begin);
    if (first <= byte && (!nearest || first > static_cast<const std::byte*>(nearest->begin))) nearest = &use;
  }
  const bool in_block = begin && byte + bytes <= static_cast<const std::byte*>(begin) + size;
  std::string what = does;
  if (in_block) {
    what += " at byte " + std::to_string(byte - static_cast<const std::byte*>(begin)) + " of a block of " +
            std::to_string(size) + " bytes, which its op did not declare";
  } else if (nearest) {
    what += " out of bounds: at byte " + std::to_string(byte - static_cast<const std::byte*>(nearest->begin)) +
            " of memory of " + std::to_string(nearest->bytes) + " bytes";
  } else {
    what += " out of bounds: before all memory that it was given";
  }
  running_.report(in_block ? "not declared" : "out of bounds", what);
}

}  // namespace cuda_double
