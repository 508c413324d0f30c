// Imports of one memory, whole and in part, keep their order; foreign deleters run on the I/O lane (docs/semantics.md,
// 12).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <thread>

#include "ndarray_test_support.h"

namespace sluice::testing {
namespace {

using Floats = std::vector<float>;

/// Memory that arrays are laid over.
class Block {
 public:
  explicit Block(std::size_t count, float value = 0) : floats_(std::make_shared<Floats>(count, value)) {}
  NDArray import(std::size_t begin, std::size_t end, Device device = cpu(0)) const {
    return from_memory(floats_->data() + begin, floats_, {static_cast<std::int64_t>(end - begin)}, DType::f32, device);
  }
  Floats& operator*() const { return *floats_; }
  Floats* operator->() const { return floats_.get(); }

 private:
  std::shared_ptr<Floats> floats_;
};

/// Holds back whatever is behind it on `x`.
class WriteGate {
 public:
  explicit WriteGate(const NDArray& x) : open_(std::make_shared<std::atomic<bool>>(false)) {
    const NDArray one = x(slice(0, 1));
    ArrayPush push;
    const Attributes closure(open_);
    push.attributes = &closure;
    push.body = [](ArrayContext& c) { c.attributes<std::shared_ptr<std::atomic<bool>>>()->wait(false); };
    push.outputs = std::span(&one, 1);
    push.updates = Updates::only(0);
    push.options.name = "gate";
    push_arrays(push);
  }
  ~WriteGate() { open(); }
  void open() {
    open_->store(true);
    open_->notify_all();
  }

 private:
  std::shared_ptr<std::atomic<bool>> open_;
};

TEST(Imports, TwoOfOneBlockKeepTheOrderOfTheirWrites) {
  TestEngine test(2);
  for (int run = 0; run < 300; ++run) {
    const Block block(4096, 1);
    NDArray a = block.import(0, 4096), b = block.import(0, 4096);
    a += 1;
    b *= 2;
    a += 1;
    ASSERT_EQ(b.to_vector<float>(), Floats(4096, 5.0F)) << run;
    ASSERT_EQ(*block, Floats(4096, 5.0F)) << run;
  }
}

TEST(Imports, OverlapInPartIsOverlap) {
  TestEngine test(2, 2);
  for (int run = 0; run < 100; ++run) {
    const Block block(150, 1);
    NDArray a = block.import(0, 100), b = block.import(50, 150, cpu(1));
    std::unique_ptr<WriteGate> gate;
    if (run % 2) gate = std::make_unique<WriteGate>(a);
    a += 1;
    b *= 2;
    a += 1;
    if (gate) gate->open();
    Floats wanted(150, 3.0F);
    std::fill(wanted.begin() + 50, wanted.begin() + 100, 5.0F);
    std::fill(wanted.begin() + 100, wanted.end(), 2.0F);
    a.wait();
    b.wait();
    ASSERT_EQ(*block, wanted) << run;
  }
}

TEST(Imports, ALaterOneJoinsTwoThatDoNotOverlap) {
  TestEngine test(3, 3);
  for (int run = 0; run < 100; ++run) {
    const Block block(150, 1);
    NDArray a = block.import(0, 50), b = block.import(100, 150, cpu(1));
    WriteGate first(a), second(b);
    a += 1;
    b += 2;
    NDArray c = block.import(25, 125, cpu(2));  // names the variables of both
    c *= 10;
    a += 1;
    b += 1;
    NDArray d = block.import(60, 70);  // overlaps c alone
    d += 1;
    c += 1;
    (run % 2 ? first : second).open();
    (run % 2 ? second : first).open();
    Floats wanted(150, 11);
    std::fill(wanted.begin(), wanted.begin() + 25, 3.0F);
    std::fill(wanted.begin() + 25, wanted.begin() + 50, 22.0F);
    std::fill(wanted.begin() + 60, wanted.begin() + 70, 12.0F);
    std::fill(wanted.begin() + 100, wanted.begin() + 125, 32.0F);
    std::fill(wanted.begin() + 125, wanted.end(), 4.0F);
    EXPECT_EQ(c.to_vector<float>(), Floats(wanted.begin() + 25, wanted.begin() + 125));
    test.engine.wait_all();
    ASSERT_EQ(*block, wanted) << run;
  }
}

TEST(Imports, ThoseThatDoNotTouchRunAtOnce) {
  TestEngine test(2);
  const Block block(100);
  NDArray a = block.import(0, 50), b = block.import(50, 100);
  WriteGate gate(a);
  b += 1;
  EXPECT_EQ(b.to_vector<float>(), Floats(50, 1.0F));
}

TEST(Imports, OperationsOfOneThatIsGoneComeFirst) {
  TestEngine test(2, 2);
  for (int run = 0; run < 100; ++run) {
    const Block block(64, 1);
    auto a = std::make_unique<NDArray>(block.import(0, 40));
    WriteGate gate(*a);
    *a += 1;
    a.reset();
    NDArray b = block.import(20, 64, cpu(1));
    b *= 10;
    gate.open();
    Floats wanted(64, 10.0F);
    std::fill(wanted.begin() + 20, wanted.begin() + 40, 20.0F);
    EXPECT_EQ(b.to_vector<float>(), Floats(wanted.begin() + 20, wanted.end()));
    std::fill(wanted.begin(), wanted.begin() + 20, 2.0F);
    ASSERT_EQ(*block, wanted) << run;
  }
}

TEST(Imports, ErrorsOfOneThatIsGoneAreGone) {
  for (EngineMode mode : {EngineMode::threaded, EngineMode::serial}) {
    TestEngine test(2, 1, mode);
    const Block block(64, 1);
    auto a = std::make_unique<NDArray>(block.import(0, 40));
    poison(*a);
    a.reset();
    NDArray b = block.import(20, 64);  // the failed op may still be in flight, or may not
    b += 1;
    EXPECT_EQ(b.to_vector<float>(), Floats(44, 2.0F));
    test.engine.wait_all();
    test.engine.on_unobserved_error([](const ErrorRoot&) {});
  }
}

TEST(Imports, PoisonIsSharedAndHealsWhereAllIsOverwritten) {
  for (EngineMode mode : {EngineMode::threaded, EngineMode::serial}) {
    TestEngine test(2, 1, mode);
    const Block block(100, 1);
    NDArray a = block.import(0, 100);
    auto b = std::make_unique<NDArray>(block.import(50, 100));
    auto c = std::make_unique<NDArray>(block.import(20, 90));
    poison(*b);
    EXPECT_THROW(a.wait(), Error);
    EXPECT_THROW(c->wait(), Error);
    c->fill(3);  // not all that the variable stands for
    EXPECT_THROW(c->wait(), Error);
    a.fill(2);
    EXPECT_EQ(a.to_vector<float>(), Floats(100, 2.0F));
    EXPECT_EQ(b->to_vector<float>(), Floats(50, 2.0F));
    // What an array that is gone made of it is overwritten with the rest.
    NDArray d = block.import(0, 40);
    {
      const NDArray e = block.import(20, 60);
      poison(e);
    }
    EXPECT_THROW(d.wait(), Error);
    c.reset();
    EXPECT_THROW(d.wait(), Error);
    a.fill(4);
    EXPECT_EQ(d.to_vector<float>(), Floats(40, 4.0F));
  }
}

/// The write begins where the other import does, and ends before it.
TEST(Imports, PoisonDoesNotHealWhereTheBeginningIsOverwritten) {
  for (EngineMode mode : {EngineMode::threaded, EngineMode::serial}) {
    TestEngine test(2, 1, mode);
    const Block block(100, 1);
    NDArray whole = block.import(0, 100), beginning = block.import(0, 60);
    poison(whole);
    beginning.fill(3);
    EXPECT_THROW(whole.wait(), Error);
    whole.fill(2);
    EXPECT_EQ(beginning.to_vector<float>(), Floats(60, 2.0F));
  }
}

TEST(Imports, HeldValuesAreCopiedAway) {
  for (EngineMode mode : {EngineMode::threaded, EngineMode::serial}) {
    TestEngine test(2, 1, mode);
    const Block block(100, 1);
    NDArray a = block.import(0, 100), b = block.import(50, 100);
    const NDArray of_a = a.detach(), of_b = b.detach(), again = of_a.detach();
    b += 1;  // writes what the snapshots of the other show
    EXPECT_EQ(of_a.to_vector<float>(), Floats(100, 1.0F));
    EXPECT_EQ(again.to_vector<float>(), Floats(100, 1.0F));
    EXPECT_EQ(of_b.to_vector<float>(), Floats(50, 1.0F));
    EXPECT_EQ(&of_a.array()->version()->buffer(), &again.array()->version()->buffer());  // one copy
    b.wait();
    EXPECT_EQ(block->back(), 2);  // the write went to the memory itself
    EXPECT_EQ(a(99).item<float>(), 2);
    a.fill(7);
    EXPECT_EQ(of_a.to_vector<float>(), Floats(100, 1.0F));
    EXPECT_EQ(b.to_vector<float>(), Floats(50, 7.0F));
  }
}

TEST(Imports, ASnapshotOfOneThatIsGoneKeepsItsValue) {
  TestEngine test(2);
  const Block block(100, 1);
  NDArray kept;
  {
    NDArray a = block.import(0, 60);
    a += 1;
    kept = a.detach();
  }
  NDArray b = block.import(40, 100);
  Gate reading(kept);  // a reader in flight of the memory itself
  b += 5;
  EXPECT_FALSE(test.engine.wait_for(b, std::chrono::milliseconds(20)));
  reading.open();
  EXPECT_EQ(kept.to_vector<float>(), Floats(60, 2.0F));
  Floats wanted(60, 6.0F);
  std::fill(wanted.begin(), wanted.begin() + 20, 7.0F);
  EXPECT_EQ(b.to_vector<float>(), wanted);
}

TEST(Imports, WritingToASnapshotLeavesTheMemory) {
  for (EngineMode mode : {EngineMode::threaded, EngineMode::serial}) {
    TestEngine test(2, 1, mode);
    const Block block(10, 1);
    const NDArray a = block.import(0, 10);
    NDArray kept = a.detach();
    kept(slice(0, 5)).fill(9);
    kept += 1;
    Floats wanted(10, 10.0F);
    std::fill(wanted.begin() + 5, wanted.end(), 2.0F);
    EXPECT_EQ(kept.to_vector<float>(), wanted);
    EXPECT_EQ(*block, Floats(10, 1.0F));
  }
}

TEST(Parts, WritingToASnapshotLeavesThePart) {
  TestEngine test(2);
  const std::int64_t sizes[] = {2, 2};
  const Partitioned p = partitioned(sizes, {}, DType::f32, cpu(0));
  p.whole.assign(arange(0, 4, 1, DType::f32));
  NDArray kept = p.parts[1].detach();
  kept.fill(9);
  EXPECT_EQ(kept.to_vector<float>(), (Floats{9, 9}));
  kept(slice(0, 1)) += 1;
  EXPECT_EQ(kept.to_vector<float>(), (Floats{10, 9}));
  EXPECT_EQ(p.whole.to_vector<float>(), (Floats{0, 1, 2, 3}));
}

TEST(Imports, InputsAreReadBeforeOverlappingOutputsAreWritten) {
  TestEngine test(2);
  const Block block(8);
  std::iota(block->begin(), block->end(), 0.0F);
  NDArray low = block.import(0, 7), high = block.import(1, 8);
  high += low;  // as x[1:] += x[:-1]
  EXPECT_EQ(high.to_vector<float>(), (Floats{1, 3, 5, 7, 9, 11, 13}));
  low.assign(high);
  EXPECT_EQ(low.to_vector<float>(), (Floats{1, 3, 5, 7, 9, 11, 13}));
  NDArray whole = block.import(0, 8), other = block.import(0, 8);
  whole += other;  // coincides: in place
  EXPECT_EQ(whole.to_vector<float>(), (Floats{2, 6, 10, 14, 18, 22, 26, 26}));
  other.reshape({4, 2}).assign(whole.reshape({2, 4}).transpose());
  EXPECT_EQ(whole.to_vector<float>(), (Floats{2, 18, 6, 22, 10, 26, 14, 26}));
}

TEST(Imports, OutputsThatOverlapThrow) {
  TestEngine test(2);
  const Block block(100);
  const NDArray a = block.import(0, 60), b = block.import(50, 100);
  EXPECT_THROW(push_op([](ArrayContext&) {}, {}, {a, b}), ArrayError);
  EXPECT_THROW(push_op([](ArrayContext&) {}, {}, {b(slice(0, 10)), a(slice(55, 60))}), ArrayError);
  EXPECT_NO_THROW(push_op([](ArrayContext&) {}, {}, {b(slice(10, 50)), a(slice(0, 50))}));
  EXPECT_NO_THROW(push_op([](ArrayContext&) {}, {}, {a, b.detach()}));
}

TEST(Imports, OtherDtypesOverTheSameBytes) {
  TestEngine test(2);
  const Block block(2, 1);
  NDArray floats = block.import(0, 2);
  const NDArray bytes = from_memory(block->data(), nullptr, {8}, DType::u8, cpu(0));
  floats += 1;
  EXPECT_EQ(bytes(7).item<int>(), 0x40);  // 2.0F is 0x40000000
  bytes.fill(0);
  EXPECT_EQ(floats.to_vector<float>(), (Floats{0, 0}));
}

TEST(Imports, GradientsFollowArraysNotMemory) {
  TestEngine test(2);
  const Block block(4, 2);
  const NDArray w = ones({4}).with_grad();
  NDArray a = block.import(0, 4);
  a *= w;  // recorded: nobody else shows the memory
  sum(a).backward();
  EXPECT_EQ(w.grad().to_vector<float>(), Floats(4, 2.0F));
  NDArray b = block.import(2, 4);  // has no history
  EXPECT_THROW(b += 1, ArrayError);
  EXPECT_THROW(b.borrow<float>(), ArrayError);
  EXPECT_THROW(a *= w, ArrayError);
  a = NDArray();
  b += 1;  // no array with a history shows it any more
  EXPECT_EQ(b.to_vector<float>(), Floats(2, 3.0F));
  // A tape that reads an import keeps the value that it read.
  NDArray x = block.import(0, 4);
  const NDArray loss = sum(w * x);
  b *= 0;
  w.zero_grad();
  loss.backward();
  EXPECT_EQ(w.grad().to_vector<float>(), (Floats{2, 2, 3, 3}));
  // A leaf may be an import.
  const NDArray leaf = x.with_grad();
  sum(square(leaf)).backward();
  EXPECT_EQ(leaf.grad().to_vector<float>(), (Floats{4, 4, 0, 0}));
}

// ---- the owner

struct Released {
  std::atomic<bool> done{false};
  std::thread::id thread;
};

std::shared_ptr<void> owner_that_tells(const std::shared_ptr<Released>& released) {
  return std::shared_ptr<void>(new char, [released](void* memory) {
    delete static_cast<char*>(memory);
    released->thread = std::this_thread::get_id();
    released->done = true;
    released->done.notify_all();
  });
}

TEST(Imports, TheOwnerIsReleasedOnTheIoLane) {
  TestEngine test(2);
  const auto released = std::make_shared<Released>();
  const auto open = std::make_shared<std::atomic<bool>>(false);
  test.engine.push([open] { open->wait(false); }, {}, {.on = Place(cpu(0), LaneKind::io)});
  {
    Floats memory(16, 1);
    NDArray x = from_memory(memory.data(), owner_that_tells(released), {16}, DType::f32, cpu(0));
    x += 1;
    x.wait();
  }
  // The compute lane goes on, and nobody has run the deleter: its lane is busy.
  EXPECT_EQ((ones({4}) + 1).to_vector<float>(), Floats(4, 2.0F));
  EXPECT_FALSE(released->done);
  open->store(true);
  open->notify_all();
  test.engine.wait_all();
  EXPECT_TRUE(released->done);
  EXPECT_NE(released->thread, std::this_thread::get_id());
}

TEST(Imports, TheOwnerLivesAsLongAsTheLastOperation) {
  TestEngine test(2);
  const auto released = std::make_shared<Released>();
  Floats memory(16, 1);
  auto x = std::make_unique<NDArray>(from_memory(memory.data(), owner_that_tells(released), {16}, DType::f32, cpu(0)));
  WriteGate gate(*x);
  *x += 1;
  x.reset();
  EXPECT_FALSE(released->done);
  gate.open();
  released->done.wait(false);
  EXPECT_EQ(memory, Floats(16, 2.0F));
}

TEST(Imports, TheOwnerIsReleasedAtACapAndInACapture) {
  EngineOptions options;
  options.threads = 1;
  options.max_ops = 4;
  Engine engine(options);
  set_default_engine(&engine);
  const auto released = std::make_shared<Released>();
  Floats memory(16, 1);
  {
    NDArray x = from_memory(memory.data(), owner_that_tells(released), {16}, DType::f32, cpu(0));
    const auto open = std::make_shared<std::atomic<bool>>(false);
    for (int i = 0; i < 4; ++i) engine.push([open] { open->wait(false); }, {});
    const Program nothing = engine.capture([&] { x = NDArray(); });  // neither captured nor blocked
    released->done.wait(false);
    open->store(true);
    open->notify_all();
    engine.replay(nothing).wait();
  }
  set_default_engine(nullptr);
}

TEST(Imports, TheOwnerIsReleasedWhereTheEngineIsGone) {
  const auto released = std::make_shared<Released>();
  Floats memory(16, 1);
  NDArray x;
  {
    TestEngine test(2);
    x = from_memory(memory.data(), owner_that_tells(released), {16}, DType::f32, cpu(0));
    x += 1;
  }
  EXPECT_FALSE(released->done);
  x = NDArray();
  EXPECT_TRUE(released->done);
  EXPECT_EQ(released->thread, std::this_thread::get_id());
}

TEST(Imports, AnEmptyOneAndOneWithoutOwner) {
  TestEngine test(2);
  EXPECT_EQ(from_memory(nullptr, nullptr, {0, 3}, DType::f32, cpu(0)).to_vector<float>(), Floats());
  Floats memory(3, 1);
  EXPECT_EQ((from_memory(memory.data(), nullptr, {3}, DType::f32, cpu(0)) + 1).to_vector<float>(), Floats(3, 2.0F));
  EXPECT_THROW(from_memory(memory.data(), nullptr, {-3}, DType::f32, cpu(0)), ArrayError);
}

// ---- many

TEST(Imports, SeveralThreadsImportAndWrite) {
  constexpr int kThreads = 3, kRounds = 300;
  constexpr std::size_t kCount = 64;
  TestEngine test(2, 2);
  const Block block(kCount);
  std::vector<std::vector<int>> added(kThreads, std::vector<int>(kCount));
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      std::vector<std::pair<std::size_t, NDArray>> mine;
      for (int i = 0; i < kRounds; ++i) {
        if (mine.size() > 5) mine.erase(mine.begin() + static_cast<std::ptrdiff_t>(random() % mine.size()));
        const std::size_t begin = random() % kCount, end = begin + 1 + random() % (kCount - begin);
        mine.emplace_back(begin, block.import(begin, end, cpu(static_cast<int>(random() % 2))));
        auto& [first, x] = mine[random() % mine.size()];
        const NDArray kept = random() % 3 == 0 ? x.detach() : NDArray();
        x += 1;
        for (std::int64_t k = 0; k < x.count(); ++k)
          ++added[static_cast<std::size_t>(t)][first + static_cast<std::size_t>(k)];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  test.engine.wait_all();
  for (std::size_t k = 0; k < kCount; ++k) {
    int wanted = 0;
    for (const auto& of_thread : added) wanted += of_thread[k];
    EXPECT_EQ((*block)[k], static_cast<float>(wanted)) << k;
  }
}

/// A program over imports of one block, whose arrays come and go; all that it sees, and the block at its end.
std::vector<Floats> random_program(unsigned seed, EngineMode mode) {
  constexpr std::size_t kCount = 48;
  TestEngine test(3, 3, mode);
  test.engine.on_unobserved_error([](const ErrorRoot&) {});
  std::vector<Floats> seen;
  const Block block(kCount, 1);
  std::mt19937 random(seed);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  std::vector<NDArray> arrays;
  const auto import = [&] {
    const std::size_t begin = below(kCount), end = begin + 1 + below(kCount - begin);
    arrays.push_back(block.import(begin, end, cpu(static_cast<int>(below(3)))));
  };
  import();
  const auto window = [&](const NDArray& x, std::int64_t count) {
    const auto from = static_cast<std::int64_t>(below(static_cast<std::size_t>(x.count() - count + 1)));
    return x(slice(from, from + count));
  };
  for (int step = 0; step < 60; ++step) {
    const std::size_t a = below(arrays.size()), b = below(arrays.size());
    NDArray x = arrays[a], y = arrays[b];
    const std::int64_t count =
        1 + static_cast<std::int64_t>(below(static_cast<std::size_t>(std::min(x.count(), y.count()))));
    switch (below(12)) {
      case 0:
      case 1:
        import();
        break;
      case 2:
        if (arrays.size() > 1) arrays.erase(arrays.begin() + static_cast<std::ptrdiff_t>(a));
        break;
      case 3:
        arrays.push_back(x.detach());
        break;
      case 4:
        x += 1;
        break;
      case 5:
        x.fill(static_cast<float>(step));
        break;
      case 6: {
        const NDArray to = window(x, count), from = window(y, count);
        push_op(
            [](ArrayContext& c) {
              const TensorView& in = c.input(0);
              for (std::int64_t i = in.count(); i-- > 0;) c.output().as<float>()[i] = in.as<float>()[i] + 1;
            },
            {from}, {to}, {.on = x.device()});
        break;
      }
      case 7: {
        NDArray to = window(x, count);
        const NDArray from = window(y, count);
        if (x.device() == y.device()) to += from;
        break;
      }
      case 8:
        arrays.push_back((x * 0.5F).to(cpu(static_cast<int>(below(3)))));
        break;
      case 9:
        if (x.device() == y.device()) window(x, count).assign(window(y, count));
        break;
      case 10:
        if (below(3) == 0) poison(x);
        break;
      default:
        try {
          seen.push_back(x.to_vector<float>());
        } catch (const Error&) {
          seen.push_back({-1});
        }
    }
  }
  for (const NDArray& x : arrays) try {
      seen.push_back(x.to_vector<float>());
    } catch (const Error&) {
      seen.push_back({-1});
    }
  arrays.clear();
  try {
    test.engine.wait_all();
  } catch (const AggregateError&) {
  }
  test.engine.clear_errors();
  seen.push_back(*block);
  return seen;
}

TEST(Imports, RandomProgramsEqualSerialMode) {
  int poisoned = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    const std::vector<Floats> serial = random_program(seed, EngineMode::serial);
    poisoned += std::count(serial.begin(), serial.end(), Floats{-1}) > 0;
    const std::vector<Floats> threaded = random_program(seed, EngineMode::threaded);
    ASSERT_EQ(threaded.size(), serial.size()) << seed;
    for (std::size_t i = 0; i < serial.size(); ++i) {
      ASSERT_EQ(threaded[i].size(), serial[i].size()) << seed << ' ' << i;
      ASSERT_EQ(std::memcmp(threaded[i].data(), serial[i].data(), serial[i].size() * sizeof(float)), 0)
          << seed << ' ' << i;
    }
  }
  EXPECT_GT(poisoned, 50);
}

}  // namespace
}  // namespace sluice::testing
