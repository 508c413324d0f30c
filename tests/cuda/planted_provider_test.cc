// Mistakes planted in the provider of the CUDA backend and in its streams, under programs of arrays: the double reports
// each with the ops' names and their pushes, with no delay to help, and reports nothing of the provider as it is.
#include <map>
#include <mutex>

#include "cuda_double/observed.h"
#include "planted.h"
#include "sluice/ndarray/array_call.h"
#include "sluice/operators/backends/cuda/libraries.h"
#include "sluice/resources/cuda/backend/cuda_provider.h"
#include "sluice/resources/cuda/lazy_provider.h"

namespace sluice::testing {
namespace {

using cuda::CudaCore;
using cuda::CudaProvider;
using cuda::CudaStream;
using cuda::OnCard;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

template <class P>
std::shared_ptr<Provider> make() {
  if (!cuda_unavailable().empty()) return nullptr;  // loads the backend's kernels
  const cuda::Host host{current_device_op, current_memory_uses, cuda::working, cuda::working};
  return cuda_double::make_provider<P>(std::make_shared<CudaCore>(CudaOptions{.logical = 1}, 2, host));
}

// ---- streams

template <class S>
struct WithStreams : CudaProvider {
  explicit WithStreams(const std::shared_ptr<CudaCore>& core) : CudaProvider(core), core_of_streams(core) {}
  std::unique_ptr<Stream> make_stream(int device, LaneKind lane) override {
    return std::make_unique<S>(core_of_streams, device, lane);
  }
  const std::shared_ptr<CudaCore> core_of_streams;
};

void write_word(CudaStream& stream, cuda::Word& word, std::uint64_t point) {
  stream.core().write(stream.stream(), word, point, stream.card());
}

struct RecordsNoEvent final : CudaStream {
  using CudaStream::CudaStream;
  bool record(std::uint64_t point) noexcept override {
    stream();
    const OnCard on(card());
    const std::lock_guard lock(mutex_);
    points_.push_back({point, new_event()});
    write_word(*this, word(), point);
    return true;
  }
};

/// The event of a point is recorded at the point before it.
struct RecordsBeforeTheWork final : CudaStream {
  using CudaStream::CudaStream;
  ~RecordsBeforeTheWork() override {
    if (next_) spare_.push_back(next_);
  }
  bool record(std::uint64_t point) noexcept override {
    stream();
    const OnCard on(card());
    const std::lock_guard lock(mutex_);
    if (!next_) record_next();
    points_.push_back({point, next_});
    write_word(*this, word(), point);
    record_next();
    return true;
  }

 private:
  void record_next() {
    next_ = new_event();
    cudaEventRecord(next_, stream());
  }
  cudaEvent_t next_ = nullptr;
};

/// Destroys each event as soon as it is recorded, and does not look at what the waits for it answer.
struct DestroysEvents final : CudaStream {
  using CudaStream::CudaStream;
  bool record(std::uint64_t point) noexcept override {
    stream();
    const OnCard on(card());
    const std::lock_guard lock(mutex_);
    points_.push_back({point, new_event()});
    write_word(*this, word(), point);
    cudaEventRecord(points_.back().event, stream());
    cudaEventDestroy(points_.back().event);
    return true;
  }
  bool wait(const StreamEvent& event) override try { return CudaStream::wait(event); } catch (const cuda::CudaError&) {
    return true;
  }
};

struct WaitsForNothing final : CudaStream {
  using CudaStream::CudaStream;
  bool wait(const StreamEvent&) override { return true; }
};

/// The host writes the word that the stream is to write.
struct SaysTooEarlyThatItIsDone final : CudaStream {
  using CudaStream::CudaStream;
  bool record(std::uint64_t point) noexcept override {
    const bool recorded = CudaStream::record(point);
    if (lane() == LaneKind::compute) __atomic_store_n(&word().value, point, __ATOMIC_RELEASE);
    return recorded;
  }
};

// ---- memory, copies, and the current device

struct EntersAnotherCard : CudaProvider {
  using CudaProvider::CudaProvider;
  void enter(int device) noexcept override { CudaProvider::enter(1 - device); }
};

struct AllocatesOnAnotherCard : CudaProvider {
  using CudaProvider::CudaProvider;
  void* allocate(int device, std::size_t bytes, Stream*) noexcept override {
    return CudaProvider::allocate(1 - device, bytes, nullptr);
  }
  void free(int device, void* block, std::size_t bytes, Stream*) noexcept override {
    CudaProvider::free(1 - device, block, bytes, nullptr);
  }
};

/// One block for all of a size.
struct GivesABlockTwice : CudaProvider {
  using CudaProvider::CudaProvider;
  void* allocate(int device, std::size_t bytes, Stream* stream) noexcept override {
    const std::lock_guard lock(mutex_);
    void*& block = blocks_[bytes];
    if (!block) block = CudaProvider::allocate(device, bytes, stream);
    return block;
  }
  void free(int, void*, std::size_t, Stream*) noexcept override {}

 private:
  std::mutex mutex_;
  std::map<std::size_t, void*> blocks_;
};

struct MakesPageableMemory : CudaProvider {
  using CudaProvider::CudaProvider;
  void* allocate_pinned(std::size_t bytes) noexcept override { return Provider::allocate_pinned(bytes); }
  void free_pinned(void* block, std::size_t bytes) noexcept override { Provider::free_pinned(block, bytes); }
};

/// The given stream waits for the copy, but the copy does not wait for what the given stream has waited for.
struct CopiesOnAnotherStream : CudaProvider {
  using CudaProvider::CudaProvider;
  void copy(void* to, const void* from, std::size_t bytes, Stream* stream) override {
    CudaStream& given = *cuda::cuda_stream(stream);
    const OnCard on(given.card());
    const cudaStream_t other = core().use(given.device()).memory;
    cudaEvent_t copied = nullptr;
    SLUICE_CUDA(cudaEventCreateWithFlags, &copied, cudaEventDisableTiming);
    SLUICE_CUDA(cudaMemcpyAsync, to, from, bytes, cudaMemcpyDefault, other);
    SLUICE_CUDA(cudaEventRecord, copied, other);
    SLUICE_CUDA(cudaStreamWaitEvent, given.stream(), copied);
    cudaEventDestroy(copied);
  }
};

struct CopiesTooMuch : CudaProvider {
  using CudaProvider::CudaProvider;
  void copy(void* to, const void* from, std::size_t bytes, Stream* stream) override {
    CudaProvider::copy(to, from, bytes + 4, stream);
  }
};

// ---- programs

NDArray numbers(Device device) {
  const DeviceScope scope(cpu(0));
  return arange(0, 64, 1, DType::f32).reshape({8, 8}).to(device);
}

/// Over all lanes of a device. All is issued before any of it runs, so that each step to another lane needs a wait.
void over_lanes(OnDouble&, bool planted) {
  const NDArray x = numbers(gpu(0)) + 0;
  x.wait();
  cuda_double::silence(0);
  const NDArray back = ((x + 1) * 2).to(cpu(0)), more = numbers(gpu(0));
  std::atomic<bool> issued{false};
  const Ticket ticket =
      push_issuing([](ArrayContext& c) { *c.attributes<Planting>().issued = true; }, {false, &issued}, back, more);
  while (!issued && !ticket.done()) std::this_thread::yield();  // done without: it failed before
  cuda_double::release();
  more.wait();
  const float value = back.to_vector<float>()[63];
  EXPECT_TRUE(planted || value == 128) << value;
}

/// The device has long been finished with the copy to pinned memory, but nobody has waited for it.
void read_by_the_host(OnDouble& on, bool planted) {
  const NDArray back = (numbers(gpu(0)) + 1).to(cpu(0));
  on.engine().wait_all();
  const Ref<Version> version = back.array()->version();
  const auto load = [&buffer = version->buffer()] {
    touch_pinned(buffer, {buffer.data(), DType::f32, {8, 8}, {8, 1}}, false);  // as arrays do
  };
  if (planted) {
    on.engine().push(load, {}, {.name = "loader"});
  } else {
    on.engine().push(load, {read(back)}, {.name = "loader"});
  }
  on.engine().wait_all();
}

CudaCore& core_of(OnDouble& on) { return static_cast<CudaProvider&>(*on.engine().provider(gpu(0))).core(); }

/// A product on each of a card's two logical devices, the second one after plant(first lane's, second lane's).
template <class Plant>
void multiply_on_two_lanes(OnDouble& on, Plant plant) {
  const NDArray x = numbers(gpu(0)), y = numbers(gpu(1)) + 1;
  matmul(x, x).wait();
  y.wait();
  CudaCore& core = core_of(on);
  plant(*core.at(0).libraries, *core.at(1).libraries);
  matmul(y, y).wait();
}
void share_a_handle(OnDouble& on, bool planted) {
  cublasLtHandle_t own = nullptr;
  multiply_on_two_lanes(on, [&](cuda::Libraries& first, cuda::Libraries& second) {
    own = second.blas;
    if (planted) second.blas = first.blas;
  });
  core_of(on).at(1).libraries->blas = own;
}
void share_a_workspace(OnDouble& on, bool planted) {
  void* own = nullptr;
  multiply_on_two_lanes(on, [&](cuda::Libraries& first, cuda::Libraries& second) {
    own = second.workspace;
    if (planted) second.workspace = first.workspace;
  });
  core_of(on).at(1).libraries->workspace = own;
}

/// An algorithm that was chosen for operands of one alignment, for others.
void forget_alignment(OnDouble& on, bool planted) {
  const NDArray x = numbers(gpu(0)), longer = arange(0, 65, 1, DType::f32).to(gpu(0));
  const NDArray odd = longer.narrow(0, 1, 65).reshape({8, 8});
  matmul(x, x).wait();
  auto& chosen = core_of(on).at(0).libraries->products;
  const auto aligned = chosen.begin()->second;
  matmul(odd, odd).wait();
  EXPECT_EQ(chosen.size(), 2U);
  if (planted) {
    for (auto& [key, algorithm] : chosen) algorithm = aligned;
  }
  matmul(odd, odd).wait();
}

struct Mistake {
  const char* name;
  std::shared_ptr<Provider> (*provider)();  ///< null: the program makes it
  void (*program)(OnDouble& on, bool planted);
  const char* op;  ///< whose name and push are in the report
  const char* report;
  CudaOptions cuda = {.logical = 1};
};

class CudaPlantedProvider : public ::testing::TestWithParam<Mistake> {};

TEST_P(CudaPlantedProvider, IsReportedByName) {
  const Mistake& mistake = GetParam();
  const ProviderFactory factory = mistake.provider ? ProviderFactory(mistake.provider) : ProviderFactory();
  EXPECT_THAT(reports_of({}, mistake.cuda, factory, mistake.program),
              Contains(AllOf(HasSubstr("[" + std::string(mistake.op) + "] planted_provider_test.cc:"),
                             HasSubstr(mistake.report))));
}

constexpr const char* kNoOrder = "accesses without order";
constexpr CudaOptions kTwoOfACard{.logical = 2};
const Mistake kMistakes[] = {
    {"EventNotRecorded", make<WithStreams<RecordsNoEvent>>, over_lanes, "transfer",
     "waits for an event that was never recorded"},
    {"EventBeforeTheWork", make<WithStreams<RecordsBeforeTheWork>>, over_lanes, "mul_scalar", kNoOrder},
    {"EventDestroyed", make<WithStreams<DestroysEvents>>, over_lanes, "transfer",
     "cudaStreamWaitEvent of an event that is destroyed"},
    {"WaitLeftOut", make<WithStreams<WaitsForNothing>>, over_lanes, "mul_scalar", kNoOrder},
    {"PointSaidTooEarly", make<WithStreams<SaysTooEarlyThatItIsDone>>, over_lanes, "transfer",
     "takes a point of another stream as passed that is not"},
    {"WrongCurrentDevice", make<EntersAnotherCard>, over_lanes, "add_scalar", "while the current device is 1"},
    {"AllocationOnAnotherCard", make<AllocatesOnAnotherCard>, over_lanes, "add_scalar",
     "on device 0 is given memory of device 1"},
    {"BlockGivenTwice", make<GivesABlockTwice>, over_lanes, "transfer", kNoOrder},
    {"PageableInsteadOfPinned", make<MakesPageableMemory>, over_lanes, "transfer", "not pinned"},
    {"CopyOnAnotherStream", make<CopiesOnAnotherStream>, over_lanes, "mul_scalar", kNoOrder},
    {"CopyOfTooMuch", make<CopiesTooMuch>, over_lanes, "transfer", "260 bytes"},
    {"HostReadWithoutAWait", nullptr, read_by_the_host, "transfer", "on the host"},
    {"HandleSharedByTwoLanes", nullptr, share_a_handle, "matmul", "a handle is shared by two streams", kTwoOfACard},
    {"WorkspaceSharedByTwoLanes", nullptr, share_a_workspace, "matmul", kNoOrder, kTwoOfACard},
    {"AlgorithmOfAnotherAlignment", nullptr, forget_alignment, "matmul", "an operand that is not aligned to"},
};
INSTANTIATE_TEST_SUITE_P(Each, CudaPlantedProvider, ::testing::ValuesIn(kMistakes),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace sluice::testing
