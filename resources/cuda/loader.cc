// Finds the CUDA backend, and loads it when it is needed: when a program asks for it, or uses a card.
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <string>

#include "sluice/engine/detail/forks.h"
#include "sluice/engine/detail/settle_engines.h"
#include "sluice/engine/environment.h"
#include "sluice/engine/errors.h"
#include "sluice/engine/order_observer.h"
#include "sluice/resources/cuda/cards.h"
#include "sluice/resources/cuda/lazy_provider.h"
#include "sluice/resources/cuda/library.h"
#include "sluice/resources/cuda/library_file.h"

namespace sluice {
namespace cuda {
namespace {

OpenLibrary linked_in = nullptr;
int (*linked_in_cards)() = nullptr;

const Library* told_of = nullptr;  ///< with the lock of the library, as is the next
void (*tell)(const Library&) = nullptr;

enum class State : std::uint8_t { not_asked, unavailable, usable };
constinit std::atomic<State> state{State::not_asked};  ///< of the library, as soon as that is known

constinit std::atomic<pid_t> initialised_in{0};  ///< the process in which CUDA was initialised; 0: none

void is_initialised() noexcept {
  pid_t none = 0;
  initialised_in.compare_exchange_strong(none, getpid());
}
/// CUDA was initialised in a process that this one is a forked child of.
bool is_of_parent() noexcept {
  const pid_t where = initialised_in.load();
  return where != 0 && where != getpid();
}

struct Loaded {
  const Library* library = nullptr;
  std::string why;  ///< there is none, or no card
};

Loaded load() {
  Loaded result;
  if (!detail::switch_from_environment("SLUICE_CUDA", true)) {
    result.why = "SLUICE_CUDA=0 switches it off";
    return result;
  }
  OpenLibrary open = linked_in;
  if (!open) {
    const std::string file = library_file();
    void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
      const char* const why = dlerror();
      result.why = "the CUDA backend cannot be loaded: " + (why ? why : file);
      return result;
    }
    open = reinterpret_cast<OpenLibrary>(dlsym(handle, "sluice_cuda_library"));
    if (!open) {
      result.why = file + " is no CUDA backend of Sluice";
      return result;
    }
  }
  result.library = open({current_device_op, current_memory_uses, working, working});
  if (result.library->version != kLibraryVersion) {
    result.why = "the CUDA backend is of another version of Sluice";
    result.library = nullptr;
    return result;
  }
  if (const char* const why = result.library->unavailable()) {
    result.why = why;
  } else {
    is_initialised();
    detail::settle_engines_at_exit();  // before what the library, and those it loads, do there
    const std::lock_guard lock(detail::process_lock(detail::ProcessLock::cuda_library));
    told_of = result.library;
    if (tell) tell(*told_of);
  }
  return result;
}

const Loaded& loaded() {
  return detail::first_use([] {
    static const Loaded result = load();
    state.store(result.why.empty() ? State::usable : State::unavailable, std::memory_order_release);
    return &result;
  });
}

/// As library(), but throws where there is no card to use.
const Library& usable_library() {
  const std::string& why = cuda_unavailable();
  if (!why.empty()) throw UsageError("no CUDA device: " + why);
  return *library();
}

/// No devices, and why.
class NoCards final : public Provider {
 public:
  DeviceKind kind() const override { return DeviceKind::gpu; }
  int devices() const override { return 0; }
  std::string unavailable() const override {
    const std::string& why = cuda_unavailable();
    return "no CUDA device: " + (why.empty() ? "there was none when the engine was made" : why);
  }
  std::unique_ptr<Stream> make_stream(int, LaneKind) override { return nullptr; }
  std::uint64_t progress() const noexcept override { return 0; }
  void await_progress(std::uint64_t, std::chrono::nanoseconds) noexcept override {}
  void* allocate(int, std::size_t, Stream*) noexcept override { return nullptr; }
  void free(int, void*, std::size_t, Stream*) noexcept override {}
  void copy(void*, const void*, std::size_t, Stream*) override {}
  void fill(void*, std::byte, std::size_t, Stream*) override {}
};

int logical_gpus() {
  const char* const text = std::getenv("SLUICE_LOGICAL_GPUS");
  if (!text || !*text) return 1;
  char* end = nullptr;
  const long count = std::strtol(text, &end, 10);
  if (*end || count < 1 || count > 64) {
    throw UsageError("SLUICE_LOGICAL_GPUS=" + std::string(text) + ": a number from 1 to 64 is wanted");
  }
  return static_cast<int>(count);
}

}  // namespace

void on_library(void (*f)(const Library& library)) {
  const std::lock_guard lock(detail::process_lock(detail::ProcessLock::cuda_library));
  tell = f;
  if (told_of) f(*told_of);
}

const Library* library() { return loaded().library; }
bool is_usable() noexcept { return state.load(std::memory_order_acquire) == State::usable; }
void use_library(OpenLibrary open, int (*cards)()) {
  linked_in = open;
  linked_in_cards = cards;
}

namespace {

/// The cards to make lanes for while the library is not loaded; -1 where it has to be asked. In a forked child of a
/// process that uses CUDA it is asked too, because it says why there are none.
int cards_before_loading() {
  if (is_of_parent()) return -1;
  if (linked_in_cards) return linked_in_cards();
  if (linked_in || state.load(std::memory_order_acquire) != State::not_asked) return -1;
  if (!detail::switch_from_environment("SLUICE_CUDA", true)) return 0;
  const detail::InFirstUse in_use;  // no fork falls between what the driver does and the note of it
  const CardCount found = count_cards({.visible = std::getenv("CUDA_VISIBLE_DEVICES")});
  if (found.asked && found.cards > 0) is_initialised();
  return found.cards > 0 && !library_is_there(library_file()) ? -1 : found.cards;
}

std::shared_ptr<Provider> make_provider(const CudaOptions& options) {
  const int cards = cards_before_loading();
  if (cards > 0) {
    return lazy_provider(cards * options.logical, options,
                         [options] { return usable_library().make_provider(options); });
  }
  if (cards == 0 || !cuda_unavailable().empty()) return std::make_shared<NoCards>();
  return library()->make_provider(options);
}

}  // namespace
}  // namespace cuda

const std::string& cuda_unavailable() {
  if (!cuda::is_of_parent()) return cuda::loaded().why;
  return detail::first_use([] {
    return new const std::string("the parent process used CUDA before the fork, and it does not survive one");
  });
}

ProviderFactory cuda_devices(CudaOptions options) {
  if (options.logical < 0 || options.logical > 64) {
    throw UsageError("CudaOptions: logical = " + std::to_string(options.logical) + " is not in 0..64");
  }
  return [options]() -> std::shared_ptr<Provider> {
    CudaOptions chosen = options;
    if (chosen.logical == 0) chosen.logical = cuda::logical_gpus();
    chosen.nvtx |= detail::switch_from_environment("SLUICE_NVTX", false);
    return cuda::make_provider(chosen);
  };
}

}  // namespace sluice
