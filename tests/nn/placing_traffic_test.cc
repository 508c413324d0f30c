// What comms() says of a training step of a GPT, beside what simulated devices read of each other's memory while it
// runs.
#include <map>
#include <mutex>

#include "placing_support.h"
#include "sluice/resources/providers/sim.h"

namespace sluice {
namespace {

using test::Gpt;
using test::megatron;
using test::TestEngine;
using test::tokens;

/// Bytes by "file:line" of the call.
using Bytes = std::map<std::string, std::int64_t>;

std::string line_of(const std::source_location& where) {
  const std::string_view file = where.file_name();
  return std::string(file.substr(file.rfind('/') + 1)) + ":" + std::to_string(where.line());
}

/// What each device reads of other devices' memory.
class Traffic {
 public:
  void clear() {
    const std::lock_guard lock(mutex_);
    read_.clear();
  }
  std::map<std::string, Bytes> read() const {
    const std::lock_guard lock(mutex_);
    return read_;
  }

  /// Tells it all that the devices do.
  class Observer final : public AccessObserver {
   public:
    explicit Observer(Traffic& traffic) : traffic_(traffic) {}
    Stream add(std::string name, const std::atomic<std::uint64_t>*, std::function<bool()>) override {
      const std::lock_guard lock(traffic_.mutex_);
      devices_.push_back(name.substr(0, name.find(' ')));
      return static_cast<Stream>(devices_.size() - 1);
    }
    void touches(Stream stream, std::span<const MemoryUse> uses, const Caller& caller) noexcept override {
      const std::lock_guard lock(traffic_.mutex_);
      for (const MemoryUse& use : uses) {
        const auto block = blocks_.upper_bound(use.begin);
        if (use.writes || block == blocks_.begin()) continue;
        const auto& [bytes, owner] = std::prev(block)->second;
        const auto offset = static_cast<const char*>(use.begin) - static_cast<const char*>(std::prev(block)->first);
        if (static_cast<std::size_t>(offset) < bytes && owner != devices_[stream]) {
          traffic_.read_[devices_[stream]][line_of(caller.label.where)] += static_cast<std::int64_t>(use.bytes);
        }
      }
    }
    void allocated(Stream stream, const void* block, std::size_t bytes, const Caller&) noexcept override {
      const std::lock_guard lock(traffic_.mutex_);
      blocks_[block] = {bytes, devices_[stream]};
    }
    void freed(Stream, const void* block, const Caller&) noexcept override { freed(block, {}); }
    void freed(const void* block, const Caller&) noexcept override {
      const std::lock_guard lock(traffic_.mutex_);
      blocks_.erase(block);
    }
    void allocated(const void*, std::size_t) noexcept override {}
    void remove(Stream) noexcept override {}
    void recorded(Stream, std::uint64_t) noexcept override {}
    void waits(Stream, Stream, std::uint64_t) noexcept override {}
    void ordered_after(Stream, Stream, std::uint64_t, const Caller&) noexcept override {}
    void host_after(Points, bool) noexcept override {}
    void host_returns() noexcept override {}
    void host_touches(std::span<const MemoryUse>, const Caller&) noexcept override {}
    void block_reused(const void*) noexcept override {}
    void undeclared(const Caller&) noexcept override {}
    void forget() noexcept override {}

   private:
    Traffic& traffic_;
    std::vector<std::string> devices_;
    std::map<const void*, std::pair<std::size_t, std::string>> blocks_;
  };

 private:
  mutable std::mutex mutex_;
  std::map<std::string, Bytes> read_;
};
Traffic* traffic = nullptr;
std::unique_ptr<AccessObserver> observer(std::function<void(std::string)>) {
  return std::make_unique<Traffic::Observer>(*traffic);
}

/// A step of training over tp 4, dp 4, and dp 2 x tp 2, with activations between the blocks replicated over tp or cut
/// by positions, and under ZeRO: what each device reads of the others is, line by line and byte by byte, what comms()
/// says.
TEST(PlacingTraffic, IsWhatCommsSays) {
  if (test::on_streams()) GTEST_SKIP() << "it makes simulated devices of its own";
  Traffic kept;
  traffic = &kept;
  SimOptions options;
  options.observer = observer;
  Engine engine({.threads = 2, .providers = {sim_devices(4, options)}});
  struct Default {
    explicit Default(Engine* one) { set_default_engine(one); }
    ~Default() { set_default_engine(nullptr); }
  };
  const Default as_default(&engine);
  struct Case {
    std::vector<Mesh::Axis> axes;
    Placement between;
    int zero = 0;
  };
  const std::vector<Mesh::Axis> tp{{"tp", 4}}, dp{{"dp", 4}}, both{{"dp", 2}, {"tp", 2}};
  const std::vector<Case> cases{{tp, replicate},      {tp, shard(1)},      {both, replicate}, {both, shard(1), 1},
                                {both, replicate, 2}, {both, shard(1), 3}, {dp, replicate},   {dp, replicate, 3}};
  for (const Case& c : cases) {
    const Mesh mesh(c.axes, DeviceKind::sim);
    const DeviceScope on({DeviceKind::sim, 0});
    SCOPED_TRACE(to_string(mesh) + " " + to_string(c.between) + " zero " + std::to_string(c.zero));
    Gpt net{.vocabulary = 64, .context = 8, .heads = 4, .width = 32, .p = 0.1};
    const bool cut = c.axes[0].name == "dp";
    auto tables = c.axes.back().name == "tp" ? megatron(net, c.between) : std::vector<nn::AxisLayouts>();
    if (cut) tables.push_back({.axis = "dp", .zero = c.zero});
    nn::place(net, mesh, tables);
    nn::initialise(net, 3);
    nn::Optimizer opt = test::adam(net);
    RandomStream stream(5);
    const Placements rows = cut ? Placements{{"dp", shard(0)}} : Placements();
    const NDArray x = place(tokens(8, 8, 1, 64), mesh, rows), y = place(tokens(8, 8, 2, 64), mesh, rows);
    const auto step = [&] {
      const MeshScope scope(mesh);
      const nn::Training training(stream);
      net.loss(x, y).backward();
      opt.step();
    };
    engine.wait_all();
    Bytes said;
    for (const Communication& one : comms(step)) said[line_of(one.where)] += one.bytes;
    engine.wait_all();
    kept.clear();
    step();
    engine.wait_all();
    EXPECT_FALSE(said.empty());
    const auto read = kept.read();
    for (int i = 0; i < 4; ++i) {
      const auto found = read.find(to_string(Device{DeviceKind::sim, static_cast<std::uint8_t>(i)}));
      EXPECT_EQ(found == read.end() ? Bytes() : found->second, said) << "device " << i;
    }
  }
}

}  // namespace
}  // namespace sluice
