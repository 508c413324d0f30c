// .npy and .npz files in both directions between Sluice and NumPy (numpy_files.py is its side).
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include "paths.h"
#include "sluice/ndarray/formats/npy.h"
#include "sluice/ndarray/formats/npz.h"
#include "sluice/tests/support/format_checks.h"

namespace sluice {
namespace {

std::string hex(std::span<const std::byte> bytes) {
  std::string text = "x";
  for (std::byte b : bytes) {
    text.push_back("0123456789abcdef"[std::to_integer<int>(b) >> 4]);
    text.push_back("0123456789abcdef"[std::to_integer<int>(b) & 15]);
  }
  return text;
}

std::string line(const std::string& file, const std::string& member, const HostTensor& tensor) {
  std::string shape;
  for (auto size : tensor.shape) shape += (shape.empty() ? "" : ",") + std::to_string(size);
  return file + " " + member + " " + std::string(name_of(tensor.dtype)) + " " + (shape.empty() ? "-" : shape) + " " +
         hex(tensor.bytes);
}

int numpy(const std::string& mode, const std::filesystem::path& folder) {
  // Debian's own interpreter: python3-numpy is a package of it.
  return std::system(
      ("/usr/bin/python3 " SLUICE_SOURCE_DIR "/tests/ndarray/numpy_files.py " + mode + " '" + folder.string() + "'")
          .c_str());
}

TEST(NpyAndNumPy, ReadsWhatNumPyWrites) {
  const test::TemporaryDirectory directory;
  ASSERT_EQ(numpy("write", directory.path()), 0) << "python3-numpy (cmake/packages.sh test)";
  std::map<std::string, std::map<std::string, HostTensor>> archives;
  for (const std::string name : {"stored.npz", "packed.npz"}) {
    for (auto& [member, tensor] : load_npz(directory / name)) archives[name].emplace(member, std::move(tensor));
  }
  std::ifstream expected(directory / "expected.txt");
  int count = 0;
  for (std::string text; std::getline(expected, text); ++count) {
    std::istringstream words(text);
    std::string file, member;
    words >> file >> member;
    const HostTensor tensor = member == "-" ? load_npy(directory / file) : archives.at(file).at(member);
    EXPECT_EQ(line(file, member, tensor), text);
  }
  EXPECT_EQ(count, 3 * 8 * 8 * 2);
}

TEST(NpyAndNumPy, WritesWhatNumPyReads) {
  const test::TemporaryDirectory directory;
  std::vector<HostTensor> held;
  for (DType dtype : test::all_dtypes()) {
    if (dtype == DType::bf16) continue;
    for (const Dims& shape : test::odd_shapes()) {
      held.push_back(test::random_tensor(dtype, shape, static_cast<unsigned>(held.size())));
    }
  }
  std::ofstream expected(directory / "expected.txt");
  std::vector<NamedTensor> tensors;
  for (std::size_t i = 0; i < held.size(); ++i) {
    const std::string file = std::to_string(i) + ".npy", name = "t" + std::to_string(i);
    save_npy(directory / file, held[i]);
    tensors.push_back({name, held[i].dtype, held[i].shape, held[i].bytes});
    expected << line(file, "-", held[i]) << "\n"
             << line("stored.npz", name, held[i]) << "\n"
             << line("packed.npz", name, held[i]) << "\n";
  }
  expected.close();
  save_npz(directory / "stored.npz", tensors);
  save_npz(directory / "packed.npz", tensors, {.compress = true});
  EXPECT_EQ(numpy("check", directory.path()), 0) << "python3-numpy (cmake/packages.sh test)";
}

}  // namespace
}  // namespace sluice
