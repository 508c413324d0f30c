// Cards are counted by the driver's files, without CUDA; its library is asked where they do not tell.
#include "sluice/resources/cuda/cards.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "paths.h"
#include "sluice/resources/cuda/library_file.h"

namespace sluice::cuda {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFakeDriver = SLUICE_BINARY_DIR "/tests/libfake_driver.so";

/// A folder with the files of a driver, and devices. The driver's library is one that has seven cards.
class CountCards : public ::testing::Test {
 protected:
  CountCards() {
    std::string name = (fs::temp_directory_path() / "cards-XXXXXX").string();
    root_ = ::mkdtemp(name.data());
    fs::create_directories(root_ / "dev");
    from_.driver = root_ / "driver";
    from_.devices = root_ / "dev";
    from_.library = kFakeDriver;
  }
  ~CountCards() override { fs::remove_all(root_); }

  void card(int minor, bool device = true) {
    const fs::path folder = root_ / "driver/gpus" / ("0000:0" + std::to_string(minor) + ":00.0");
    fs::create_directories(folder);
    std::ofstream(folder / "information")
        << "Model: \t\t NVIDIA H200\nIRQ:   \t\t 170\nDevice Minor: \t " << minor << "\n";
    if (device) std::ofstream(root_ / "dev" / ("nvidia" + std::to_string(minor))) << "";
  }
  void expect(int cards, bool asked, const char* visible = nullptr) {
    from_.visible = visible;
    const CardCount found = count_cards(from_);
    EXPECT_EQ(found.cards, cards) << (visible ? visible : "not set");
    EXPECT_EQ(found.asked, asked) << (visible ? visible : "not set");
  }

  fs::path root_;
  CardSources from_;
};

TEST_F(CountCards, ByTheDriversFiles) {
  for (int i = 0; i < 3; ++i) card(i);
  expect(3, false);
}

TEST_F(CountCards, WithoutADriverThereAreNone) {
  from_.library = "libsluice_no_such_driver.so.1";
  expect(0, false);
  expect(0, false, "0,1");
}

TEST_F(CountCards, WithoutFilesTheLibraryIsAsked) { expect(7, true); }

TEST_F(CountCards, ALibraryThatSaysNoHasNone) {
  from_.library = "libm.so.6";
  expect(0, true);
}

TEST_F(CountCards, TheVisibleOnesCount) {
  for (int i = 0; i < 4; ++i) card(i);
  expect(0, false, "");
  expect(0, false, "-1");
  expect(1, false, "2");
  expect(2, false, "3,0");
  expect(2, false, "1,2,9,0");  // what comes after one that is not there does not count
  expect(1, false, "1,-1,2");
  for (const char* const other : {"0,0", "GPU-8932f937", "MIG-GPU-1/2/3", "a", "0,GPU-1", "99999999999999999999"}) {
    expect(7, true, other);
  }
}

/// As under a mask of devices by permission, and in a container that has the machine's files and not its devices.
TEST_F(CountCards, ADeviceThatMayNotBeOpened) {
  card(0);
  card(1);
  fs::permissions(root_ / "dev/nvidia1", fs::perms::none);
  if (::geteuid() != 0) expect(1, false);
  fs::remove(root_ / "dev/nvidia1");
  expect(7, true);
}

TEST_F(CountCards, ACardInPartsIsTheDriversMatter) {
  card(0);
  fs::create_directories(root_ / "driver/capabilities/gpu0/mig");
  expect(1, false);
  fs::create_directories(root_ / "driver/capabilities/gpu0/mig/gi3");
  expect(7, true);
}

TEST_F(CountCards, ACardThatTheDriverLeavesOut) {
  card(0);
  card(1);
  std::ofstream(root_ / "driver/gpus/0000:00:00.0/information", std::ios::app) << "GPU Excluded:\t No\n";
  std::ofstream(root_ / "driver/gpus/0000:01:00.0/information", std::ios::app) << "GPU Excluded:\t Yes\n";
  expect(1, false);
}

TEST_F(CountCards, FilesThatDoNotTell) {
  card(0);
  std::ofstream(root_ / "driver/gpus/0000:00:00.0/information") << "Model: \t\t Unknown\n";
  expect(7, true);
}

TEST(LibraryFile, IsFoundWithoutLoadingIt) {
  EXPECT_TRUE(library_is_there(kFakeDriver));
  EXPECT_FALSE(library_is_there("/nonexistent/libsluice_cuda.so"));
  EXPECT_FALSE(library_is_there("libsluice_no_such_thing.so"));
  EXPECT_TRUE(library_is_there("libm.so.6"));
  EXPECT_FALSE(library_is_there("m.so.6"));
}

}  // namespace
}  // namespace sluice::cuda
