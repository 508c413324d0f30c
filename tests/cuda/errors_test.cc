// Errors of the CUDA backend, on its double: each belongs to the op that made it, poisons what was made from that op's
// result and nothing else, and a card that is lost takes no other with it.
#include <cstdlib>
#include <functional>

#include "support.h"

namespace sluice {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Clock = std::chrono::steady_clock;

/// Why an array has no value; null if it has one.
ErrorRef error_of(const NDArray& x) {
  try {
    x.to_bytes();
    return nullptr;
  } catch (const Error& e) {
    return e.root_ref();
  }
}
std::string text_of(const NDArray& x) {
  const ErrorRef error = error_of(x);
  return error ? error->to_string() : "no error";
}
std::string here(int line) { return "errors_test.cc:" + std::to_string(line); }

NDArray numbers(std::int64_t count, Device device) {
  const DeviceScope scope(cpu(0));
  return arange(0, count, 1, DType::f32).to(device);
}

/// Two cards, and nobody told of errors that nobody reads.
struct TwoCards : OnDouble {
  explicit TwoCards(EngineOptions engine_options = {})
      : OnDouble({.devices = 2}, {}, std::move(engine_options)), first(numbers(6, gpu(0))), second(numbers(6, gpu(1))) {
    engine().on_unobserved_error([](const ErrorRoot&) {});
    first.wait();
    second.wait();
  }
  ~TwoCards() { first = second = {}; }
  NDArray first, second;
};

TEST(CudaErrors, AnIndexOutsideIsFoundLate) {
  const TwoCards on;
  const NDArray x = on.first.reshape({3, 2});
  const NDArray bad = from(std::vector<std::int64_t>{0, -7}, {2}).to(gpu(0));
  const NDArray rows = take_rows(x, bad);
  const int line = __LINE__ - 1;
  const NDArray made = exp(rows) + 1, there = made.to(gpu(1)) * 2;
  const NDArray other = x * 2;
  for (const NDArray& poisoned : {rows, made, there}) {
    EXPECT_EQ(text_of(poisoned), "[take_rows] " + here(line) + " on gpu(0): the index -7 (element 1) is not in [0, 3)");
  }
  EXPECT_EQ(other.to_vector<float>(), (std::vector<float>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ((on.second + 1).to_vector<float>()[5], 6);
  // The next op of the lane has no part in it.
  const NDArray good = take_rows(x, from(std::vector<std::int64_t>{2, 0}, {2}).to(gpu(0)));
  EXPECT_EQ(good.to_vector<float>(), (std::vector<float>{4, 5, 0, 1}));
}

/// The gradient adds to rows by the same labels, most often before the host knows that one is wrong: it stays within
/// its array, which the double watches.
TEST(CudaErrors, AnIndexOutsideIsFoundLateInGradientsToo) {
  const TwoCards on;
  for (const std::int64_t label : {-7, 3, 1'000'000'000}) {
    const NDArray x = on.first.reshape({3, 2}).detach().with_grad();
    const NDArray bad = from(std::vector<std::int64_t>{0, label}, {2}).to(gpu(0));
    sum(take_rows(x, bad)).backward();
    EXPECT_THAT(text_of(x.grad()), HasSubstr("the index " + std::to_string(label) + " (element 1) is not in [0, 3)"));
  }
  EXPECT_EQ((on.first + 1).to_vector<float>()[5], 6);
}

/// Each report is several writes to the host's memory, so an op makes one, however many bad elements it has. The next
/// op's is its own.
TEST(CudaErrors, ManyBadElementsAreReportedOnce) {
  TwoCards on;
  const std::shared_ptr<Provider> provider = on.engine().provider(gpu(0));
  const NDArray x = on.first.reshape({3, 2}), line = numbers(1000, gpu(0));
  const NDArray bad = full({1000}, 7).to(DType::i64).to(gpu(0)), table = zeros({1000, 3}).to(gpu(0));
  RandomStream random(1);
  struct Case {
    const char* says;
    std::function<NDArray()> run;
  };
  const Case cases[] = {
      {"the index 7 ", [&] { return take_rows(x, bad); }},
      {"the index 7 ", [&] { return take(on.first, bad); }},
      {"the index 7 ", [&] { return take_along_axis(on.first, bad, 0); }},
      {"the index 7 ", [&] { return scatter_add(on.first, 0, bad, line); }},
      {"the index 7 ", [&] { return bincount(bad, 5); }},
      {"the label 7 ", [&] { return cross_entropy(table, bad); }},
      {"the probability 7 ", [&] { return bernoulli(bad.to(DType::f64), random); }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.says);
    for (int again = 0; again < 2; ++again) {
      const std::uint64_t before = provider->errors(0);
      EXPECT_THAT(text_of(c.run()), HasSubstr(c.says));
      EXPECT_EQ(provider->errors(0), before + 1);
    }
  }
  EXPECT_EQ((line + 1).to_vector<float>()[999], 1000);
}

/// Ops that fail between two looks of the host, more than there are places for.
TEST(CudaErrors, MoreFindingsThanTheRingHolds) {
  const TwoCards on;
  const NDArray x = on.first.reshape({3, 2});
  const NDArray bad = full({1000}, 3).to(DType::i64).to(gpu(0));
  bad.wait();
  cuda_double::silence(0);
  std::vector<NDArray> rows;
  for (int i = 0; i < 300; ++i) rows.push_back(take_rows(x, bad));
  const NDArray other = on.second + 1;
  cuda_double::release();
  // The ops that the device had not confirmed by then cannot be told apart.
  for (const NDArray& each : rows) {
    EXPECT_THAT(text_of(each), AllOf(StartsWith("[take_rows] "),
                                     AnyOf(HasSubstr("the index 3 "), HasSubstr("more errors than it could keep"))));
  }
  EXPECT_EQ(other.to_vector<float>()[5], 6);
  EXPECT_EQ((on.first + 1).to_vector<float>()[5], 6);
}

TEST(CudaErrors, ALaunchThatFails) {
  const TwoCards on;
  NDArray x = on.first + 0;
  x.wait();
  cuda_double::fail_nth(cuda_double::Fault::launch, 1);
  x += 10;
  const int line = __LINE__ - 1;
  const NDArray made = x * 2, other = on.first * 2;
  EXPECT_THAT(text_of(made), HasSubstr(here(line) + " on gpu(0): cudaLaunchKernelEx: too many resources"));
  EXPECT_EQ(text_of(x), text_of(made));
  EXPECT_EQ(other.to_vector<float>()[5], 10);
  // Nothing was launched, so the old value is whole.
  default_engine().recover(x);
  EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  x += 1;
  EXPECT_EQ(x.to_vector<float>()[5], 6);
}

TEST(CudaErrors, MemoryThatIsNotThere) {
  const TwoCards on;
  cuda_double::fail_every(cuda_double::Fault::allocation, 1);
  const NDArray large = full({1 << 16}, 1).to(gpu(0));
  const NDArray made = large + 1;
  EXPECT_THAT(text_of(made), AllOf(HasSubstr("errors_test.cc:"), HasSubstr("gpu(0) has no 256.00 KiB left")));
  cuda_double::fail_every(cuda_double::Fault::allocation, 0);
  EXPECT_EQ((full({1 << 16}, 1).to(gpu(0)) + 1).to_vector<float>()[77], 2);
  EXPECT_EQ((on.first + 1).to_vector<float>()[5], 6);
}

TEST(CudaErrors, AnAllocationThatFailsOnceIsMadeAgain) {
  const TwoCards on;
  cuda_double::fail_nth(cuda_double::Fault::allocation, 1);
  const NDArray made = full({1 << 16}, 1).to(gpu(0)) + 1;
  EXPECT_EQ(made.to_vector<float>()[77], 2);
  EXPECT_EQ(cuda_double::failures(cuda_double::Fault::allocation), 1U);
}

TEST(CudaErrors, ACopyThatFails) {
  TwoCards on;
  on.leaves_what_a_lost_card_has();
  cuda_double::fail_nth(cuda_double::Fault::copy, 1);
  const NDArray there = numbers(6, gpu(0));
  EXPECT_THAT(text_of(there + 1), AllOf(StartsWith("[transfer] errors_test.cc:"), HasSubstr("cudaMemcpyAsync: ")));
  // The double's usual error of a copy is a sticky one.
  EXPECT_THAT(text_of(on.first + 1), HasSubstr("gpu(0) was lost"));
}

TEST(CudaErrors, ACopyThatIsRefused) {
  const TwoCards on;
  cuda_double::fail_nth(cuda_double::Fault::copy, 1, cudaErrorInvalidValue);
  const NDArray there = numbers(6, gpu(0));
  EXPECT_THAT(text_of(there + 1),
              AllOf(StartsWith("[transfer] errors_test.cc:"), HasSubstr("cudaMemcpyAsync: invalid argument")));
  EXPECT_EQ((on.first + 1).to_vector<float>()[5], 6);
  EXPECT_EQ((numbers(6, gpu(0)) + 1).to_vector<float>()[5], 6);
}

TEST(CudaErrors, ALibraryThatFails) {
  const TwoCards on;
  const NDArray a = on.first.reshape({2, 3});
  const std::vector<float> want = matmul(a, a, {.transpose_b = true}).to_vector<float>();
  EXPECT_EQ(want, (std::vector<float>{5, 14, 14, 50}));
  // For sizes that it knows, and for others: where an algorithm is chosen and where it is used.
  for (const bool known : {true, false}) {
    for (const int call : {1, 2}) {
      SCOPED_TRACE(std::string(known ? "known" : "new") + " sizes, call " + std::to_string(call));
      if (known && call == 2) continue;
      const NDArray b = known ? a : a.narrow(1, 0, call);
      cuda_double::fail_nth(cuda_double::Fault::library, static_cast<std::uint64_t>(call), cudaErrorLaunchFailure);
      const NDArray product = matmul(b, b, {.transpose_b = true});
      const int line = __LINE__ - 1;
      EXPECT_THAT(text_of(product + 1), AllOf(StartsWith("[matmul] " + here(line) + " on gpu(0): cublasLt"),
                                              HasSubstr("CUBLAS_STATUS_EXECUTION_FAILED")));
      EXPECT_EQ(matmul(a, a, {.transpose_b = true}).to_vector<float>(), want);
      // What failed once is not taken for refused: the same sizes go to the library again.
      const std::uint64_t before = cuda_double::calls(cuda_double::Fault::library);
      EXPECT_EQ(matmul(b, b, {.transpose_b = true}).to_vector<float>()[0],
                b.to_vector<float>()[1] * (known ? 5 : call - 1));
      EXPECT_GT(cuda_double::calls(cuda_double::Fault::library), before);
    }
  }
}

TEST(CudaErrors, AConvolutionThatFails) {
  const TwoCards on;
  (on.first + 1).wait();  // makes the lane's handles
  const NDArray x = numbers(36, gpu(0)).reshape({1, 1, 6, 6}), w = numbers(9, gpu(0)).reshape({1, 1, 3, 3});
  for (std::uint64_t call = 1; call < 30; ++call) {
    const std::uint64_t before = cuda_double::failures(cuda_double::Fault::library);
    cuda_double::fail_nth(cuda_double::Fault::library, call, cudaErrorLaunchFailure);
    const NDArray y = conv2d(x, w);
    const int line = __LINE__ - 1;
    const std::string text = text_of(y);
    if (cuda_double::failures(cuda_double::Fault::library) == before) {
      ASSERT_GT(call, 1U);
      EXPECT_EQ(text, "no error");
      return;
    }
    EXPECT_THAT(text, AllOf(StartsWith("[conv2d] " + here(line) + " on gpu(0): cudnn"), HasSubstr(": CUDNN_STATUS_")));
    EXPECT_EQ(conv2d(x, w).to_vector<float>()[0], conv2d(x.to(cpu(0)), w.to(cpu(0))).to_vector<float>()[0]);
  }
  ADD_FAILURE() << "a convolution makes no 30 calls";
}

/// What fails at a card's first use is no want of memory, and each later use says the same.
TEST(CudaErrors, AFirstUseThatFailsSaysWhy) {
  struct Case {
    cuda_double::Fault fault;
    std::uint64_t call;
    cudaError_t error;
    const char* text;
  };
  for (const Case& c :
       {Case{cuda_double::Fault::library, 1, cudaErrorNotSupported, "cublasLtCreate: CUBLAS_STATUS_NOT_SUPPORTED"},
        Case{cuda_double::Fault::library, 2, cudaErrorNotSupported, "cudnnCreate: CUDNN_STATUS_NOT_SUPPORTED"},
        Case{cuda_double::Fault::write, 1, cudaErrorNotSupported, "cuStreamWriteValue64: operation not supported"},
        Case{cuda_double::Fault::write, 1, cudaErrorDeviceUninitialized, "invalid device context"}}) {
    SCOPED_TRACE(c.text);
    OnDouble on({.devices = 2});
    on.leaves_what_a_lost_card_has();
    on.engine().on_unobserved_error([](const ErrorRoot&) {});
    cuda_double::fail_nth(c.fault, c.call, c.error);
    for (int i = 0; i < 2; ++i) {
      EXPECT_THAT(text_of(numbers(6, gpu(0)) + 1),
                  AllOf(HasSubstr("errors_test.cc:"), HasSubstr("the card cannot be used: "), HasSubstr(c.text)));
    }
    EXPECT_EQ((numbers(6, gpu(1)) + 1).to_vector<float>()[5], 6);
  }
}

/// A point that can never be recorded ends the card, and not the patience of who waits.
TEST(CudaErrors, APointThatCannotBeRecorded) {
  for (const cudaError_t error : {cudaErrorNotSupported, cudaErrorDeviceUninitialized}) {
    TwoCards on;
    on.leaves_what_a_lost_card_has();
    cuda_double::fail_every(cuda_double::Fault::write, 1, error);
    EXPECT_THAT(text_of(on.first + 1), HasSubstr("cuStreamWriteValue64: "));
    cuda_double::fail_every(cuda_double::Fault::write, 0);
    EXPECT_EQ((on.second + 1).to_vector<float>()[5], 6);
  }
}

TEST(CudaErrors, EveryStickyCodeEndsTheWaits) {
  for (const cudaError_t code :
       {cudaErrorContained, cudaErrorContextIsDestroyed, cudaErrorTensorMemoryLeak, cudaErrorMpsClientTerminated,
        cudaErrorExternalDevice, cudaErrorNotSupported, cudaErrorInitializationError}) {
    SCOPED_TRACE(cudaGetErrorString(code));
    TwoCards on;
    on.leaves_what_a_lost_card_has();
    cuda_double::fail_sticky(0, code, 1);
    NDArray x = on.first;
    for (int i = 0; i < 20; ++i) x = x + 1;
    const auto begin = Clock::now();
    EXPECT_THAT(text_of(x), HasSubstr(cudaGetErrorString(code)));
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(2));
    EXPECT_EQ((on.second + 1).to_vector<float>()[5], 6);
  }
}

/// What a stream gave back is not there for another one until somebody has waited for it and trimmed the pool.
TEST(CudaErrors, MemoryThatOtherStreamsGaveBack) {
  OnDouble on({.devices = 1, .memory = std::size_t{256} << 20});
  {
    std::vector<NDArray> small;
    const DeviceScope scope(gpu(0));
    for (int i = 0; i < 40; ++i) small.push_back(zeros({1 << 20}));  // 160 MiB
    on.engine().wait_all();
  }
  const DeviceScope scope(gpu(0));
  const NDArray large = zeros({40 << 20});
  EXPECT_EQ(large(7).item<float>(), 0);
}

TEST(CudaErrors, StreamsThatCannotBeMade) {
  for (std::uint64_t call = 1; call < 12; ++call) {
    SCOPED_TRACE("call " + std::to_string(call));
    OnDouble on({.devices = 1});
    on.engine().on_unobserved_error([](const ErrorRoot&) {});
    cuda_double::fail_nth(cuda_double::Fault::stream, call, cudaErrorInvalidValue);
    const std::string text = text_of(numbers(6, gpu(0)) + 1);
    if (call == 1) {  // the card's own, without which it cannot be used
      EXPECT_THAT(text, HasSubstr("the card cannot be used: cudaStreamCreateWithFlags: invalid argument"));
      on.leaves_what_a_lost_card_has();
      continue;
    }
    if (text != "no error") {
      EXPECT_THAT(text, HasSubstr("errors_test.cc:"));
    }
    EXPECT_EQ((numbers(6, gpu(0)) + 1).to_vector<float>()[5], 6);
  }
}

/// Waiters of a card that has had a sticky error, whether they ask or wait already.
TEST(CudaErrors, AStickyErrorIsTheEndOfTheCardAlone) {
  for (const std::uint64_t commands : {0, 1, 5}) {
    SCOPED_TRACE("after " + std::to_string(commands) + " commands");
    TwoCards on;
    on.leaves_what_a_lost_card_has();
    cuda_double::fail_sticky(0, cudaErrorIllegalAddress, commands);
    NDArray x = on.first;
    for (int i = 0; i < 20; ++i) x = x + 1;
    const NDArray there = x.to(gpu(1)) + 1, good = on.second + 1;
    const auto begin = Clock::now();
    const std::string text = text_of(x);
    // The op whose call found it, or what had not been confirmed by then.
    EXPECT_THAT(text, AllOf(HasSubstr("errors_test.cc:"), HasSubstr("an illegal memory access")));
    EXPECT_THAT(text_of(there), HasSubstr("an illegal memory access"));
    EXPECT_THAT(text_of(on.first + 1), HasSubstr("gpu(0) was lost"));
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(1));
    EXPECT_EQ(good.to_vector<float>()[5], 6);
    EXPECT_EQ((good.to(cpu(0)) + 1).to_vector<float>()[5], 7);
    on.first = {};
    EXPECT_TRUE(on.engine().stop());
  }
}

TEST(CudaErrors, ACardThatAnswersNoMoreIsGivenUp) {
  TwoCards on({.device_limit = milliseconds(200)});
  on.leaves_what_a_lost_card_has();
  cuda_double::silence(0, 3);
  NDArray x = on.first;
  for (int i = 0; i < 20; ++i) x = x + 1;
  const NDArray good = on.second + 1;
  EXPECT_THAT(text_of(x), HasSubstr("gpu(0) was lost: it has not answered for 200 ms"));
  EXPECT_EQ(good.to_vector<float>()[5], 6);
  EXPECT_EQ((on.second * 2).to_vector<float>()[5], 10);
  x = on.first = {};
  EXPECT_TRUE(on.engine().stop());
}

/// Without a limit waiters wait as long as they like, and then all is right.
TEST(CudaErrors, ACardThatIsSilentForAWhile) {
  const TwoCards on;
  cuda_double::silence(0, 1);
  const NDArray x = on.first + 1 + 2;
  EXPECT_FALSE(default_engine().wait_for(x, milliseconds(5)));
  EXPECT_EQ((on.second + 1).to_vector<float>()[5], 6);
  cuda_double::release();
  EXPECT_EQ(x.to_vector<float>()[5], 8);
}

/// In a process of its own, because a process asks once whether there is a card.
void without_a_driver() {
  cuda_double::reset({.driver = cudaErrorInsufficientDriver});
  const bool asked =
      cuda_unavailable() == "the driver says: CUDA driver version is insufficient for CUDA runtime version";
  std::string said;
  {
    Engine engine({.providers = {cuda_devices()}});
    set_default_engine(&engine);
    try {
      ones({3}).to(gpu(0)).wait();
    } catch (const UsageError& e) {
      said = e.what();
    }
    if ((ones({3}) + 1).to_vector<float>()[2] != 2) said += ", and the CPU is gone";
    set_default_engine(nullptr);
  }
  std::fprintf(stderr, "said: %s\n", said.c_str());
  std::_Exit(asked ? 7 : 8);
}

TEST(CudaErrorsDeathTest, WithoutADriverProgramsOfTheCpuRun) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(without_a_driver(), ::testing::ExitedWithCode(7),
              "no CUDA device: the driver says: CUDA driver version is insufficient");
}

/// Machine code runs on later cards of its family, a virtual architecture on all later ones.
void on_a_card_of(int capability) {
  cuda_double::reset({.capability = capability});
  std::fprintf(stderr, "said: %s\n", cuda_unavailable().c_str());
  std::_Exit(cuda_unavailable().empty() ? 7 : 8);
}

TEST(CudaErrorsDeathTest, ACardThatTheBuildLacksIsNamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const int capability : {80, 89, 90, 120, 130}) {
    EXPECT_EXIT(on_a_card_of(capability), ::testing::ExitedWithCode(7), "said: \n") << capability;
  }
  for (const char* const capability : {"7.5", "10.0"}) {
    const int number = capability[0] == '7' ? 75 : 100;
    EXPECT_EXIT(on_a_card_of(number), ::testing::ExitedWithCode(8),
                std::string("has the compute capability ") + capability +
                    ", and libsluice_cuda.so was built for 80-real 90-real 120-virtual");
  }
}

}  // namespace
}  // namespace sluice
