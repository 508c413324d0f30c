// Ways in which a card differs from plain loops, for the backend as a whole: docs/cuda-double.md lists all of them,
// with the tests of each.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <tuple>

#include "paths.h"
#include "support.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

NDArray numbers(const Dims& shape) {
  const DeviceScope scope(cpu(0));
  std::int64_t count = 1;
  for (const std::int64_t n : shape) count *= n;
  return (arange(0, count, 1, DType::f32) * 0.25 - 3).reshape(shape);
}

/// A library refuses what it took a moment ago: its kernels and plain ones have to serve the same calls.
TEST(CudaDifferences, LibrariesThatRefuseAtRandom) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const OnDouble on({.seed = seed, .refused_of_100 = 50});
    for (std::int64_t n = 1; n <= 8; ++n) {
      const NDArray a = numbers({n, 3}), b = numbers({3, n + 1});
      const NDArray x = numbers({2, 2, n + 2, n + 3}), w = numbers({3, 2, 3, 2});
      const auto on_card = [](const NDArray& array) { return array.to(gpu(0)); };
      // Small multiples of 1/16: every order of a sum gives the same bits.
      EXPECT_EQ(matmul(on_card(a), on_card(b)).to_vector<float>(), matmul(a, b).to_vector<float>());
      EXPECT_EQ(conv2d(on_card(x), on_card(w)).to_vector<float>(), conv2d(x, w).to_vector<float>());
    }
  }
}

/// What the library does with the sizes of such a call is known from the first on, so each later one is one call of it.
std::uint64_t library_calls_of_a_known_linear(DType dtype, bool relu) {
  const NDArray x = numbers({5, 3}).to(dtype).to(gpu(0)), w = numbers({4, 3}).to(dtype).to(gpu(0)),
                bias = numbers({4}).to(dtype).to(gpu(0));
  const LinearOptions options{.relu = relu};
  const auto run = [&] { return linear(x, w, bias, options); };
  run().wait();
  const std::uint64_t before = cuda_double::calls(cuda_double::Fault::library);
  const NDArray y = run();
  y.wait();
  const std::uint64_t calls = cuda_double::calls(cuda_double::Fault::library) - before;
  EXPECT_TRUE(y.to_bytes() == linear(x.to(cpu(0)), w.to(cpu(0)), bias.to(cpu(0)), options).to_bytes());
  return calls;
}

/// Where the library takes a product of doubles, and not its epilogue, the product is still the library's.
TEST(CudaDifferences, EpiloguesOfDoublesThatAreRefused) {
  for (const bool takes : {true, false}) {
    const OnDouble on({.epilogues_f64 = takes});
    for (const bool relu : {false, true}) {
      SCOPED_TRACE(std::string(takes ? "taken" : "refused") + (relu ? ", with relu" : ""));
      EXPECT_EQ(library_calls_of_a_known_linear(DType::f64, relu), 1U);
      EXPECT_EQ(library_calls_of_a_known_linear(DType::f32, relu), 1U);
    }
  }
}

/// A bias that begins anywhere in a larger array reaches the library at an alignment that all its kernels take.
TEST(CudaDifferences, ABiasInTheMidstOfAnArray) {
  const OnDouble on;
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    const NDArray x = numbers({5, 3}).to(dtype).to(gpu(0)), w = numbers({4, 3}).to(dtype).to(gpu(0)),
                  all = numbers({16}).to(dtype).to(gpu(0));
    linear(x, w, all.narrow(0, 0, 4)).wait();
    for (std::int64_t first = 0; first < 9; ++first) {
      SCOPED_TRACE(first);
      const NDArray bias = all.narrow(0, first, first + 4);
      const std::uint64_t before = cuda_double::calls(cuda_double::Fault::library);
      const NDArray y = linear(x, w, bias);
      y.wait();
      EXPECT_GT(cuda_double::calls(cuda_double::Fault::library), before);
      EXPECT_TRUE(y.to_bytes() == linear(x.to(cpu(0)), w.to(cpu(0)), bias.to(cpu(0))).to_bytes());
    }
  }
}

/// A context takes some hundred megabytes of a card, so those that a program does not use have none, whatever card its
/// threads have as they come.
TEST(CudaDifferences, CardsThatNobodyUsesHaveNoContext) {
  constexpr int kUsed = 5;
  const OnDouble on({.devices = 8});
  EXPECT_THAT(cuda_double::contexts(), ::testing::IsEmpty());
  const auto use = [] {
    const NDArray x = numbers({1000}).to(gpu(kUsed)) + 1;
    EXPECT_EQ(x.to_vector<float>()[999], numbers({1000}).to_vector<float>()[999] + 1);
    const std::shared_ptr<Provider> provider = default_engine().provider(gpu(kUsed));
    void* const block = provider->allocate(kUsed, 4096, nullptr);
    void* const pinned = provider->allocate_pinned(4096);
    provider->copy(pinned, block, 4096, nullptr);
    provider->free_pinned(pinned, 4096);
    provider->free(kUsed, block, 4096, nullptr);
  };
  {
    const DeviceScope scope(gpu(kUsed));
    zeros({4}).wait();  // as long as no card is in use, pinned memory is made on the thread's
  }
  use();
  for (int i = 0; i < 8; ++i) std::thread(use).join();
  EXPECT_THAT(cuda_double::contexts(), ::testing::ElementsAre(kUsed));
}

/// A thread that asks for a card of its own has it again after each call.
TEST(CudaDifferences, AThreadKeepsTheCardThatItUses) {
  const OnDouble on({.devices = 2});
  std::thread([] {
    ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
    const std::shared_ptr<Provider> provider = default_engine().provider(gpu(0));
    void* const block = provider->allocate(0, 4096, nullptr);
    provider->free(0, block, 4096, nullptr);
    int card = -1;
    EXPECT_EQ(cudaGetDevice(&card), cudaSuccess);
    EXPECT_EQ(card, 1);
  }).join();
}

/// A thread that waits may be the one that records a point, by a call of the driver, which wants a context.
TEST(CudaDifferences, AThreadWithoutAContextRecords) {
  OnDouble on;
  const std::shared_ptr<Provider> provider = on.engine().provider(gpu(0));
  const std::unique_ptr<Stream> stream = provider->make_stream(0, LaneKind::copy_peer);
  std::ignore = stream->native();
  ASSERT_TRUE(stream->record(1));
  stream->await(1, std::chrono::seconds(20));
  bool recorded = false;
  std::thread([&] { recorded = stream->record(2); }).join();  // with the first point's event: CUDA makes nothing
  ASSERT_TRUE(recorded);
  stream->await(2, std::chrono::seconds(20));
  EXPECT_EQ(stream->reached(), 2U);
}

/// A card's queue of launches has some 1,000 places, and a launch blocks when it is full.
TEST(CudaDifferences, ALaneKeepsFewerOpsThanAQueueHasPlaces) {
  OnDouble on;
  EXPECT_LE(on.engine().provider(gpu(0))->limits(0).unconfirmed, 512);
  NDArray x = numbers({4}).to(gpu(0));
  x.wait();
  const std::uint64_t before = cuda_double::commands();
  cuda_double::silence(0);
  for (int i = 0; i < 2000; ++i) x += 1;
  while (cuda_double::commands() < before + 512) std::this_thread::yield();
  cuda_double::release();
  EXPECT_EQ(x.to_vector<float>()[0], 1997);
  EXPECT_EQ(cuda_double::full_queues(), 0U);
}

std::string text_of(const fs::path& file) {
  std::ifstream in(file);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}
const fs::path kSources = SLUICE_SOURCE_DIR;

/// The page has all of them, and the tests that it names are there.
TEST(CudaDifferences, AreOnThePageWithTheirTests) {
  std::string tests;
  for (const char* folder : {"tests/cuda", "tests/cuda_double", "tests/cuda_lazy", "tests/system"}) {
    for (const auto& entry : fs::directory_iterator(kSources / folder)) {
      if (entry.path().extension() == ".cc") tests += text_of(entry.path());
    }
  }
  const std::string card = text_of(kSources / "tests/card.sh");
  std::istringstream page(text_of(kSources / "docs/cuda-double.md"));
  int rows = 0;
  for (std::string line; std::getline(page, line);) {
    // A row is `| 3. What differs | ... | tests |`, with the tests' names in backquotes.
    const std::string number = "| " + std::to_string(rows + 1) + ". ";
    if (!line.starts_with(number)) continue;
    ++rows;
    const std::size_t bar = line.rfind('|');
    ASSERT_GT(bar, number.size()) << line;
    std::istringstream last(line.substr(line.rfind('|', bar - 1) + 1));
    for (std::string between, word; std::getline(last, between, '`') && std::getline(last, word, '`');) {
      const std::size_t dot = word.find('.');
      const auto has = [&](const std::string& text) { return tests.find(text) != std::string::npos; };
      if (word.starts_with("tests/card.sh ")) {
        EXPECT_NE(card.find("\n" + word.substr(14) + "() {"), std::string::npos) << word;
      } else if (word.ends_with(".*")) {
        EXPECT_TRUE(has("(" + word.substr(0, dot) + ", ")) << word;
      } else if (dot != std::string::npos) {
        EXPECT_TRUE(has("(" + word.substr(0, dot) + ", " + word.substr(dot + 1) + ")")) << word;
      } else {  // a suite, a test of the suite before, or a row of a list
        EXPECT_TRUE(has(", " + word + ")") || has("(" + word + ", ") || has("{\"" + word + "\",")) << word;
      }
    }
  }
  EXPECT_EQ(rows, 25);
}

/// Much is illegal while a stream is captured. The backend captures nothing, and the double has no such calls.
TEST(CudaDifferences, NothingCaptures) {
  for (const char* folder : {"resources/cuda", "operators/backends/cuda", "tests/cuda_double/include"}) {
    for (const auto& entry : fs::recursive_directory_iterator(kSources / folder)) {
      if (!entry.is_regular_file()) continue;
      const std::string text = text_of(entry.path());
      EXPECT_EQ(text.find("cudaStreamBeginCapture"), std::string::npos) << entry.path();
      EXPECT_EQ(text.find("cudaGraph"), std::string::npos) << entry.path();
    }
  }
}

/// Windows behind element 2^31, of arrays whose elements nobody else touches, so that they take no memory.
TEST(CudaDifferences, IndicesOver32BitsReachTheirElements) {
  const OnDouble on({.poison = false});
  constexpr std::int64_t kFar = (std::int64_t{1} << 31) + 90;
  NDArray x = empty({kFar + 10}, DType::u8, gpu(0)), rows = empty({kFar / 8, 8}, DType::u8, gpu(0));
  NDArray tail = x.narrow(0, kFar, kFar + 10), column = rows.narrow(0, kFar / 8 - 4, kFar / 8).narrow(1, 7, 8);
  tail.fill(3);
  column.fill(5);
  EXPECT_EQ((tail.to(DType::f32) + 1).to_vector<float>(), std::vector<float>(10, 4));
  EXPECT_EQ((column.to(DType::f32) + 1).to_vector<float>(), std::vector<float>(4, 6));
  EXPECT_EQ(x.narrow(0, kFar - 1, kFar + 1).to_vector<std::uint8_t>(), (std::vector<std::uint8_t>{0, 3}));
}

}  // namespace
}  // namespace sluice
