// Mistakes of user bodies and providers, planted on simulated devices: each is caught without any delay, and by the
// names and places of the operations.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <optional>
#include <thread>

#include "../engine/support.h"
#include "sluice/engine/order_observer.h"
#include "sluice/ndarray/array_call.h"
#include "sluice/resources/providers/sim.h"
#include "sluice/resources/testing/order_record.h"
#include "sluice/sluice.h"

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using testing::failure;
using testing::Gate;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Signal;

using Wrapper = std::function<std::shared_ptr<Provider>(std::shared_ptr<Provider>)>;

/// An engine with two simulated devices and a record, which new arrays belong to. What is reported is the test's.
class Recorded {
 public:
  explicit Recorded(const Wrapper& wrapper = {}) : control(std::make_shared<SimControl>()) {
    control->print_reports(false);
    const ProviderFactory make = sim_devices(2, {.observer = order_record, .pinned_only = true, .control = control});
    engine_.emplace(EngineOptions{.threads = 2, .providers = {[=] { return wrapper ? wrapper(make()) : make(); }}});
    engine_->on_unobserved_error([](const ErrorRoot&) {});
    before_ = &default_engine();
    set_default_engine(&*engine_);
  }
  ~Recorded() {
    set_default_engine(before_);
    EXPECT_TRUE(engine_->stop());
  }
  Engine* operator->() { return &*engine_; }
  std::vector<std::string> reports() { return control->take_reports(); }

  const std::shared_ptr<SimControl> control;

 private:
  std::optional<Engine> engine_;
  Engine* before_;
};

/// An operation whose body issues by itself.
template <class F>
void push_issuing(F body, std::initializer_list<NDArray> inputs, const NDArray& output, const PushOptions& options,
                  std::source_location where = std::source_location::current()) {
  std::vector<const NDArray*> reads;
  for (const NDArray& x : inputs) reads.push_back(&x);
  const Attributes closure(std::move(body));
  ArrayPush push;
  push.attributes = &closure;
  push.body = [](ArrayContext& context) { context.attributes<F>()(context); };
  push.inputs = reads;
  push.outputs = std::span(&output, 1);
  push.issues = true;
  push.options = options;
  push.where = where;
  push_arrays(push);
}

/// A kernel that says what it touches, which is all that the record asks for.
void launch(ArrayContext& c, const void* begin, std::size_t bytes, bool writes) {
  const MemoryUse use{begin, bytes, writes};
  c.stream().launch([] {}, {&use, 1});
}

/// What the array's elements are known by on its device.
const std::byte* handle(const NDArray& x) { return x.array()->version()->buffer().data(); }

/// How reports name an operation, with the file of its push.
std::string site(const char* name) { return "[" + std::string(name) + "] planted_test.cc:"; }

constexpr std::size_t kBytes = 256;
const auto nothing = [](ArrayContext&) {};

NDArray on_device(int i) {
  const DeviceScope scope(sim(i));
  return ones({64});
}

TEST(Planted, AMissingEvent) {
  Recorded engine;
  const NDArray x = on_device(0), other = on_device(0);
  engine->wait_all();  // a point of its own, which does not cover the writer
  push_op(nothing, {}, {x}, {.name = "writer"});
  engine->wait_all();  // however long it is over
  const std::byte* const hidden = handle(x);
  push_issuing([=](ArrayContext& c) { launch(c, hidden, kBytes, false); }, {}, other,
               {.on = Place(sim(0), LaneKind::copy_in), .name = "peek"});
  engine->wait_all();
  EXPECT_THAT(engine.reports(), ElementsAre(AllOf(HasSubstr("accesses without order"), HasSubstr(site("writer")),
                                                  HasSubstr(site("peek")))));
}

TEST(Planted, AKernelThatTouchesWhatIsNotListed) {
  Recorded engine;
  const NDArray x = on_device(0), other = on_device(0);
  engine->wait_all();
  push_op([hidden = handle(x)](ArrayContext&) { (void)*const_cast<const volatile std::byte*>(kernel_pointer(hidden)); },
          {}, {other}, {.name = "peek"});
  engine->wait_all();
  EXPECT_THAT(engine.reports(), ElementsAre(AllOf(HasSubstr("[peek]"), HasSubstr("did not name"))));
}

/// Forwards all to another stream, but for its waits for others where it is deaf.
struct ForwardingStream final : Stream {
  ForwardingStream(std::unique_ptr<Stream> s, bool d) : inner(std::move(s)), deaf(d) {}
  static Stream* real(Stream* stream) { return stream ? static_cast<ForwardingStream*>(stream)->inner.get() : nullptr; }
  bool record(std::uint64_t point) noexcept override { return inner->record(point); }
  std::uint64_t reached() const noexcept override { return inner->reached(); }
  bool wait(const StreamEvent& event) override {
    waits.fetch_add(1);
    return deaf || inner->wait({real(event.stream), event.point});
  }
  void await(std::uint64_t point, std::chrono::nanoseconds limit) noexcept override { inner->await(point, limit); }
  void launch(std::function<void()> kernel, std::span<const MemoryUse> uses) override {
    inner->launch(std::move(kernel), uses);
  }
  const std::unique_ptr<Stream> inner;
  const bool deaf;
  static inline std::atomic<int> waits{0};
};

struct ForwardingProvider final : Provider, OrderObserver {
  ForwardingProvider(std::shared_ptr<Provider> p, bool d) : inner(std::move(p)), deaf(d) {}
  DeviceKind kind() const override { return inner->kind(); }
  int devices() const override { return inner->devices(); }
  std::unique_ptr<Stream> make_stream(int device, LaneKind lane) override {
    return std::make_unique<ForwardingStream>(inner->make_stream(device, lane), deaf);
  }
  void enter(int device) noexcept override { inner->enter(device); }
  std::uint64_t progress() const noexcept override { return inner->progress(); }
  void await_progress(std::uint64_t seen, std::chrono::nanoseconds limit) noexcept override {
    inner->await_progress(seen, limit);
  }
  OrderObserver& observer() const { return dynamic_cast<OrderObserver&>(*inner); }
  void stream_after(Stream& stream, std::span<const StreamEvent> passed) noexcept override {
    for (const StreamEvent& event : passed) {
      const StreamEvent other{ForwardingStream::real(event.stream), event.point};
      observer().stream_after(*ForwardingStream::real(&stream), {&other, 1});
    }
  }
  void host_after(std::span<const StreamEvent> passed, bool afresh) noexcept override {
    if (passed.empty()) observer().host_after({}, afresh);
    for (const StreamEvent& event : passed) {
      const StreamEvent real{ForwardingStream::real(event.stream), event.point};
      observer().host_after({&real, 1}, std::exchange(afresh, false));
    }
  }
  void host_returns() noexcept override { observer().host_returns(); }
  void host_touches(std::span<const MemoryUse> uses) noexcept override { observer().host_touches(uses); }
  void block_reused(const void* block) noexcept override { observer().block_reused(block); }
  std::uint64_t errors(int device) const noexcept override { return inner->errors(device); }
  std::vector<LateError> late_errors(int device, std::uint64_t from) override {
    return inner->late_errors(device, from);
  }
  std::exception_ptr lost(int device) const noexcept override { return inner->lost(device); }
  DeviceLimits limits(int device) const override { return inner->limits(device); }
  void* allocate(int device, std::size_t bytes, Stream* stream) noexcept override {
    return inner->allocate(device, bytes, ForwardingStream::real(stream));
  }
  void free(int device, void* block, std::size_t bytes, Stream* stream) noexcept override {
    inner->free(device, block, bytes, ForwardingStream::real(stream));
  }
  void* allocate_pinned(std::size_t bytes) noexcept override { return inner->allocate_pinned(bytes); }
  void free_pinned(void* block, std::size_t bytes) noexcept override { inner->free_pinned(block, bytes); }
  void copy(void* to, const void* from, std::size_t bytes, Stream* stream) override {
    inner->copy(to, from, bytes, ForwardingStream::real(stream));
  }
  void fill(void* to, std::byte value, std::size_t bytes, Stream* stream) override {
    inner->fill(to, value, bytes, ForwardingStream::real(stream));
  }
  const std::shared_ptr<Provider> inner;
  const bool deaf;
};

/// Over two devices and three lanes; all is issued before the first kernel is over, so that each step to another lane
/// needs a wait. The reports.
std::vector<std::string> chain_over_lanes(bool deaf, std::vector<float>& values) {
  ForwardingStream::waits.store(0);
  Recorded engine([deaf](std::shared_ptr<Provider> p) { return std::make_shared<ForwardingProvider>(p, deaf); });
  const NDArray x = on_device(0);
  engine->wait_all();
  Gate gate;
  Signal issued;
  push_op([&gate](ArrayContext&) { gate.pass(); }, {}, {x}, {.name = "held"});
  const NDArray sum = (x + 3).to(sim(1)) + 1;
  const NDArray last = on_device(1);
  push_issuing([&](ArrayContext&) { issued.raise(); }, {sum}, last, {.name = "last"});
  issued.wait();
  gate.open();
  engine->wait_all();
  values = sum.to_vector<float>();
  EXPECT_GE(ForwardingStream::waits.load(), deaf ? 1 : 2);
  return engine.reports();
}

TEST(Planted, AMissingWait) {
  std::vector<float> values;
  EXPECT_THAT(chain_over_lanes(false, values), IsEmpty());
  EXPECT_EQ(values, std::vector<float>(64, 5.0F));
  const std::vector<std::string> reports = chain_over_lanes(true, values);
  EXPECT_THAT(reports, Contains(AllOf(HasSubstr("accesses without order"), HasSubstr(site("add_scalar")),
                                      HasSubstr(site("transfer")))));
}

/// The kernel stands before a gate when the memory that it uses goes.
TEST(Planted, APackFreedAtIssue) {
  Recorded engine;
  const NDArray x = on_device(0);
  engine->wait_all();
  Gate gate;
  Signal freed;
  push_issuing(
      [&](ArrayContext& c) {
        void* const pack = c.provider().allocate(0, kBytes, &c.stream());
        c.stream().launch([&gate] { gate.pass(); });
        launch(c, pack, kBytes, true);
        c.provider().free(0, pack, kBytes, nullptr);  // now, and not behind the kernel
        freed.raise();
      },
      {}, x, {.name = "packer"});
  freed.wait();
  gate.open();
  engine->wait_all();
  EXPECT_THAT(engine.reports(),
              ElementsAre(AllOf(HasSubstr("accesses without order: " + site("packer")),
                                HasSubstr(", and " + site("packer")), HasSubstr("frees"), HasSubstr("on the host"))));
}

TEST(Planted, APackUsedAfterItWasFreed) {
  Recorded engine;
  const NDArray x = on_device(0), y = on_device(0);
  std::atomic<void*> pack{nullptr};
  push_issuing(
      [&pack](ArrayContext& c) {
        pack = c.provider().allocate(0, kBytes, &c.stream());
        launch(c, pack, kBytes, true);
        c.provider().free(0, pack, kBytes, &c.stream());
      },
      {}, x, {.name = "packer"});
  push_issuing([&pack](ArrayContext& c) { launch(c, pack, kBytes, false); }, {x}, y, {.name = "user"});
  engine->wait_all();
  EXPECT_THAT(engine.reports(), ElementsAre(AllOf(HasSubstr("use after free: " + site("user")),
                                                  HasSubstr("of a block that " + site("packer")))));
}

TEST(Planted, ABlockReusedEarly) {
  Recorded engine;
  const NDArray x = on_device(0), y = on_device(0);
  engine->wait_all();
  const std::shared_ptr<Provider> provider = engine->provider(sim(0));
  void* const block = provider->allocate(0, kBytes, nullptr);
  const auto use = [block](ArrayContext& c) { launch(c, block, kBytes, true); };
  push_issuing(use, {}, x, {.on = sim(0), .name = "old owner"});
  engine->wait_all();
  push_issuing(use, {}, y, {.on = Place(sim(0), LaneKind::copy_in), .name = "new owner"});
  engine->wait_all();
  EXPECT_THAT(engine.reports(), ElementsAre(AllOf(HasSubstr("accesses without order"), HasSubstr(site("old owner")),
                                                  HasSubstr(site("new owner")))));
  provider->free(0, block, kBytes, nullptr);
}

/// Host memory that a copy to a device still reads.
void pinned(bool listed) {
  SCOPED_TRACE(listed ? "listed" : "hidden");
  Recorded engine;
  const NDArray x = on_device(0).to(cpu(0)), other = on_device(1);  // x is in pinned memory
  engine->wait_all();
  Gate gate;
  Signal issued;
  push_issuing([&gate](ArrayContext& c) { c.stream().launch([&gate] { gate.pass(); }); }, {}, other,
               {.on = Place(sim(1), LaneKind::copy_in), .name = "held"});
  const NDArray there = x.to(sim(1));
  // It reads the copy, so that its turn comes when the copy is issued: a lane promises no other order.
  push_issuing([&issued](ArrayContext&) { issued.raise(); }, {there}, other,
               {.on = Place(sim(1), LaneKind::copy_in), .name = "last"});
  issued.wait();
  const Ref<Version> version = x.array()->version();
  const auto load = [&buffer = version->buffer()] {
    touch_pinned(buffer, {buffer.data(), DType::f32, {64}, {1}}, true);  // as arrays do
  };
  const auto push_loader = [&] {
    return listed ? engine->push(load, {write(x)}, {.name = "loader"}) : engine->push(load, {}, {.name = "loader"});
  };
  const Ticket ticket = push_loader();
  if (!listed) ticket.wait();
  gate.open();
  engine->wait_all();
  if (listed) {
    EXPECT_THAT(engine.reports(), IsEmpty());
  } else {
    // Neither after the copy that waits, nor after the one that made x, though that is over.
    const auto report = [](const char* access) {
      return AllOf(HasSubstr("accesses without order: " + site("transfer")), HasSubstr(access),
                   HasSubstr(", and " + site("loader")), HasSubstr("on the host"));
    };
    EXPECT_THAT(engine.reports(), ::testing::UnorderedElementsAre(report("writes bytes [0, 256) on sim(0) copy_out"),
                                                                  report("reads bytes [0, 256) on sim(1) copy_in")));
  }
}

TEST(Planted, APinnedBufferWrittenBeforeItsCopyHasEnded) {
  pinned(false);
  pinned(true);
}

/// Looks until all is over that was issued, as the record does not count it.
void become_idle(Recorded& engine) {
  while (engine->in_flight() > 0) std::this_thread::yield();
}

/// The device has long been finished with the copy from x, but nobody has waited for that.
TEST(Planted, AMissingWaitOfTheHost) {
  for (const bool listed : {false, true}) {
    SCOPED_TRACE(listed);
    Recorded engine;
    const NDArray x = on_device(0).to(cpu(0));  // in pinned memory
    x.wait();
    const NDArray there = x.to(sim(1));
    become_idle(engine);
    const Ref<Version> version = x.array()->version();
    const auto load = [&buffer = version->buffer()] {
      touch_pinned(buffer, {buffer.data(), DType::f32, {64}, {1}}, true);
    };
    if (listed) {
      engine->push(load, {write(x)}, {.name = "loader"});
    } else {
      load();
    }
    engine->wait_all();
    if (listed) {
      EXPECT_THAT(engine.reports(), IsEmpty());
    } else {
      EXPECT_THAT(engine.reports(),
                  ElementsAre(AllOf(HasSubstr("accesses without order: " + site("transfer")),
                                    HasSubstr("reads bytes [0, 256) on sim(1) copy_in"), HasSubstr("on the host"))));
    }
  }
}

/// The pool knows that the copy from a pinned block is over, whoever gets the block next.
TEST(Planted, APinnedBlockThatIsReusedIsNoMistake) {
  Recorded engine;
  const NDArray other = on_device(1);
  other.wait();  // from here on this thread is judged by what it was told
  const std::vector<float> values(64, 1.0F);
  for (int i = 0; i < 10; ++i) {
    const NDArray there = from_bytes(std::as_bytes(std::span(values)), {64}, DType::f32, sim(0));
    become_idle(engine);
    const NDArray back = there.to(cpu(0));
    become_idle(engine);
    push_op([](ArrayContext& c) { c.output(0).as<float>()[0] = 2.0F; }, {}, {back}, {.name = "host"});
    become_idle(engine);
  }
  EXPECT_GE(device_pool(*engine.operator->(), sim(0)).stats(DevicePool::pinned_memory).hits, 5U);
  EXPECT_THAT(engine.reports(), IsEmpty());
}

TEST(Planted, AKernelGivenTheWrongDevice) {
  Recorded engine;
  const NDArray x = on_device(0), y = on_device(0), there = on_device(1);
  std::atomic<Stream*> other{nullptr};
  push_issuing([&other](ArrayContext& c) { other = &c.stream(); }, {}, there, {.name = "stream"});
  engine->wait_all();
  push_issuing([&other](ArrayContext&) { other.load()->launch([] {}); }, {}, x, {.name = "lost its way"});
  push_op([hidden = handle(there)](ArrayContext&) { kernel_pointer(hidden); }, {}, {y}, {.name = "astray"});
  EXPECT_THAT(failure([&] { x.wait(); }), HasSubstr("a kernel given the wrong device: a launch on a stream of sim(1)"));
  EXPECT_THAT(failure([&] { y.wait(); }), HasSubstr("memory of sim(1) in a kernel of sim(0)"));
  EXPECT_THAT(engine.reports(),
              ::testing::UnorderedElementsAre(HasSubstr(site("lost its way")), HasSubstr(site("astray"))));
}

TEST(Planted, AHandleResolvedAtIssue) {
  Recorded engine;
  const NDArray x = on_device(0), y = on_device(0);
  push_issuing([](ArrayContext& c) { kernel_pointer(c.input(0).as<float>()); }, {x}, y, {.name = "hasty"});
  EXPECT_THAT(failure([&] { y.wait(); }), AllOf(HasSubstr("hasty"), HasSubstr("kernel_address() outside of a kernel")));
}

void read_at_issue() {
  Recorded engine;
  const NDArray x = on_device(0), y = on_device(0);
  push_issuing([](ArrayContext& c) { (void)*c.input(0).as<const volatile float>(); }, {x}, y, {.name = "hasty"});
  y.wait();
}

using PlantedDeathTest = ::testing::Test;

TEST(PlantedDeathTest, AHostReadAtIssue) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(read_at_issue(), "");
}

}  // namespace
}  // namespace sluice
