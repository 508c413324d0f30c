// The texts of errors of files, of DLPack and of memory, each as a program gets it.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "../support/devices.h"
#include "error_texts.h"
#include "sluice/ndarray/formats/npy.h"
#include "sluice/ndarray/formats/npz.h"
#include "sluice/ndarray/formats/safetensors.h"
#include "sluice/resources/memory_pool.h"
#include "sluice/tests/support/temporary_directory.h"

namespace sluice::testing {
namespace {

using test::TemporaryDirectory;
using test::write_file;
using namespace std::string_literals;

#define EXPECT_FILE_TEXT(statement, text) \
  EXPECT_EQ(text_of([&] { static_cast<void>(statement); }, __FILE__, __LINE__, folder.path()), text)

TEST(ErrorTexts, OfFilesNameTheFunctionAndTheLineOfTheCall) {
  const TemporaryDirectory folder;
  const NDArray x = ones({2, 3}), brain = ones({2}, DType::bf16);
  save_npy(folder / "x.npy", x);
  save_npz(folder / "x.npz", {{"x", x}});
  save_arrays(folder / "x.safetensors", {{"x", x}});
  const auto cut = [&](const std::string& from, const std::string& to, std::size_t bytes) {
    write_file(folder / to, test::read_file(folder / from).substr(0, bytes));
  };
  // .npy
  EXPECT_FILE_TEXT(read_npy(folder / "none"), "[read_npy] FILE:LINE: DIR/none: cannot open: No such file or directory");
  EXPECT_FILE_TEXT(load_npy(folder / "none"), "[load_npy] FILE:LINE: DIR/none: cannot open: No such file or directory");
  EXPECT_FILE_TEXT(load_npy(folder.path()), "[load_npy] FILE:LINE: DIR: is a directory, wanted a regular file");
  EXPECT_FILE_TEXT(read_npy(folder / "x.npz"),
                   "[read_npy] FILE:LINE: DIR/x.npz: is not a .npy file: wrong magic string");
  cut("x.npy", "cut.npy", 150);
  EXPECT_FILE_TEXT(load_npy(folder / "cut.npy"),
                   "[load_npy] FILE:LINE: DIR/cut.npy: shape (2, 3) of f32 needs 24 "
                   "bytes, the file has 22 after its header");
  cut("x.npy", "cut.npy", 4);
  EXPECT_FILE_TEXT(load_npy(folder / "cut.npy"),
                   "[load_npy] FILE:LINE: DIR/cut.npy: truncated: the magic string and "
                   "version needs 8 bytes, 4 are left");
  EXPECT_FILE_TEXT(save_npy(folder / "b.npy", brain),
                   "[save_npy] FILE:LINE: DIR/b.npy: the .npy format has no name for bf16; save it as .safetensors, or "
                   "convert it first");
  EXPECT_FILE_TEXT(save_npy(folder / "none/x.npy", x),
                   "[save_npy] FILE:LINE: DIR/none/x.npy: cannot write: No such file or directory");
  EXPECT_FILE_TEXT(save_npy(folder / "y.npy", DType::f32, {3}, {}),
                   "[save_npy] FILE:LINE: shape (3,) of f32 needs 12 bytes, given 0");
  EXPECT_FILE_TEXT(save_npy(folder / "y.npy", NDArray()), "[save_npy] FILE:LINE: an empty handle");
  // .npz
  EXPECT_FILE_TEXT(read_npz(folder / "x.npy"),
                   "[read_npz] FILE:LINE: DIR/x.npy: is not a .npz file: no end of a zip archive's directory");
  EXPECT_FILE_TEXT(load_npz(folder / "x.npz", {.most_bytes = 10}),
                   "[load_npz] FILE:LINE: DIR/x.npz: member 'x.npy': the members unpacked pass 10 bytes, the limit");
  EXPECT_FILE_TEXT(save_npz(folder / "y.npz", {{"", x}}), "[save_npz] FILE:LINE: the name '' is empty or too long");
  // .safetensors
  EXPECT_FILE_TEXT(load_arrays(folder / "x.npy"),
                   "[load_arrays] FILE:LINE: DIR/x.npy: header of 379676406402707 bytes, wanted at most 144");
  cut("x.safetensors", "cut.safetensors", 80);
  EXPECT_FILE_TEXT(load_safetensors(folder / "cut.safetensors"),
                   "[load_safetensors] FILE:LINE: DIR/cut.safetensors: tensor 'x': offsets [0, 24) in 8 bytes of data");
  EXPECT_FILE_TEXT(save_arrays(folder / "y.safetensors", {{"__metadata__", x}}),
                   "[save_arrays] FILE:LINE: '__metadata__' is not free as a name");
  EXPECT_FILE_TEXT(save_arrays(folder / "y.safetensors", {{"\xff", x}}),
                   "[save_arrays] FILE:LINE: a name or the metadata is not UTF-8");
  const std::string odd = R"({"c":{"dtype":"C64","shape":[1],"data_offsets":[0,8]}}  )";
  write_file(folder / "odd.safetensors",
             std::string(1, static_cast<char>(odd.size())) + std::string(7, '\0') + odd + std::string(8, '\0'));
  EXPECT_FILE_TEXT(load_safetensors(folder / "odd.safetensors").find("c"),
                   "[Safetensors::find] FILE:LINE: DIR/odd.safetensors: tensor 'c' has the dtype 'C64', wanted one of "
                   "F32 F64 F16 BF16 I8 U8 I32 I64 BOOL");
  EXPECT_FILE_TEXT(MappedArrays(folder / "none"),
                   "[MappedArrays] FILE:LINE: DIR/none: cannot open: No such file or directory");
  const MappedArrays mapped(folder / "odd.safetensors");
  EXPECT_FILE_TEXT(mapped.array("w"), "[MappedArrays::array] FILE:LINE: DIR/odd.safetensors: no tensor 'w'");
  EXPECT_FILE_TEXT(mapped.array("c"),
                   "[MappedArrays::array] FILE:LINE: DIR/odd.safetensors: tensor 'c' has the dtype 'C64', wanted one "
                   "of F32 F64 F16 BF16 I8 U8 I32 I64 BOOL");
  // Data sets, and files of nets.
  EXPECT_FILE_TEXT(load_idx(folder / "x.npy"),
                   "[load_idx] FILE:LINE: DIR/x.npy: magic number 0x934e554d is not IDX, wanted 0x0000TTRR: type TT of "
                   "08 09 0c 0d 0e, rank RR");
  write_file(folder / "short.idx", "\0\0\x08\x01\0\0\0\x05uuu"s);
  EXPECT_FILE_TEXT(load_idx(folder / "short.idx"),
                   "[load_idx] FILE:LINE: DIR/short.idx: truncated: shape (5,) of u8 "
                   "needs 5 bytes, the file holds 3");
  EXPECT_FILE_TEXT(nn::fashion_mnist(folder / "x.npy"),
                   "[nn::fashion_mnist] FILE:LINE: DIR/x.npy: is not a directory; wanted the one that holds "
                   "Fashion-MNIST's IDX files");
  EXPECT_FILE_TEXT(nn::fashion_mnist(folder.path()),
                   "[nn::fashion_mnist] FILE:LINE: DIR/train-images-idx3-ubyte.gz: cannot open: No such file or "
                   "directory");
  EXPECT_FILE_TEXT(nn::cifar10(folder.path()),
                   "[nn::cifar10] FILE:LINE: DIR/data_batch_1.bin: cannot open: No such file or directory");
  write_file(folder / "train.bin", "\x13\x63");
  EXPECT_FILE_TEXT(
      nn::cifar100(folder.path()),
      "[nn::cifar100] FILE:LINE: DIR/train.bin: holds 2 bytes, wanted records of 3074 bytes, at least one: "
      "record 0 has 2");
  EXPECT_FILE_TEXT(nn::read_image(folder / "train.bin"),
                   "[nn::read_image] FILE:LINE: DIR/train.bin: is neither PNG nor JPEG: it begins with '\\x13c'");
  EXPECT_FILE_TEXT(nn::ImageFolder(folder.path()),
                   "[nn::ImageFolder] FILE:LINE: DIR: holds no folder; wanted one of pictures for each class");
  write_file(folder / "a.csv", "a,b\n1,two\n");
  EXPECT_FILE_TEXT(nn::read_csv(folder / "a.csv"),
                   "[nn::read_csv] FILE:LINE: DIR/a.csv:2:3: 'two' is no number of f64");
  EXPECT_FILE_TEXT(nn::read_tokens(folder / "none"),
                   "[nn::read_tokens] FILE:LINE: DIR/none: cannot open: No such file or directory");
  EXPECT_FILE_TEXT(nn::load(folder / "none.index.json", {}),
                   "[nn::load] FILE:LINE: DIR/none.index.json: cannot open: No such file or directory");
  const struct { nn::Parameter w{{3}, nn::constant(1)}; } net;
  const struct { nn::Parameter x{{3}, nn::constant(1)}; } other;
  EXPECT_FILE_TEXT(nn::load(folder / "x.safetensors", {{"", net}}),
                   "[nn::load] FILE:LINE: DIR/x.safetensors: no tensor 'w', wanted as f32 (3,); 'x' (f32 (2, 3)) is "
                   "not expected");
  EXPECT_FILE_TEXT(nn::load(folder / "x.safetensors", {{"", other}}),
                   "[nn::load] FILE:LINE: DIR/x.safetensors: 'x' is f32 (2, 3), wanted f32 (3,)");
  nn::initialise(net, 1);
  EXPECT_FILE_TEXT(nn::save(folder / "none/x", {{"net", net}}),
                   "[nn::save] FILE:LINE: DIR/none/x: cannot write: No such file or directory");
  const LayerScope layer("encoder.2");
  EXPECT_FILE_TEXT(read_npy(folder / "none"),
                   "[read_npy] FILE:LINE in encoder.2: DIR/none: cannot open: No such file or directory");
}

TEST(ErrorTexts, OfDlpack) {
  const std::int64_t sizes[] = {2};
  std::array<float, 4> memory{};
  dlpack::ManagedTensorVersioned tensor{};
  const auto with = [&](auto change) {
    tensor = {};
    tensor.version = {1, 0};
    tensor.tensor = {memory.data(), {1, 0}, 1, {2, 32, 1}, const_cast<std::int64_t*>(sizes), nullptr, 0};
    change(tensor);
    return &tensor;
  };
  EXPECT_TEXT((from_dlpack(static_cast<dlpack::ManagedTensor*>(nullptr))), "[from_dlpack] FILE:LINE: no tensor");
  EXPECT_TEXT((from_dlpack(with([](auto& t) { t.version.major = 2; }))),
              "[from_dlpack] FILE:LINE: DLPack of version 2.0, wanted 1");
  EXPECT_TEXT((from_dlpack(with([](auto& t) { t.tensor.device.type = 2; }))),
              "[from_dlpack] FILE:LINE: memory of DLPack's device 2, wanted 1, the host");
  EXPECT_TEXT((from_dlpack(with([](auto& t) {
                t.tensor.dtype = {5, 64, 1};
              }))),
              "[from_dlpack] FILE:LINE: dtype of DLPack's code 5, 64 bits and 1 lanes, which Sluice has none for");
  EXPECT_TEXT((from_dlpack(with([](auto& t) { t.tensor.ndim = 9; }))),
              "[from_dlpack] FILE:LINE: rank 9, wanted 0 to 8");
  EXPECT_TEXT((from_dlpack(with([](auto& t) { t.tensor.byte_offset = 2; }))),
              "[from_dlpack] FILE:LINE: memory that is not aligned for f32");
  EXPECT_TEXT((from_dlpack(with([](auto& t) { t.tensor.data = nullptr; }))), "[from_dlpack] FILE:LINE: no memory");
  EXPECT_TEXT((to_dlpack(NDArray())), "[to_dlpack] FILE:LINE: an empty handle");
}

/// An op that gets no memory fails, and the wait says who wanted how much. (tests/cuda/seen_test.cc has a GPU's.)
TEST(ErrorTexts, OfMemoryThatIsNotThere) {
  const DeviceScope here(cpu(0));
  const NDArray x = ones({512, 512});
  x.wait();
  MemoryPool& pool = memory_pool(cpu(0));
  pool.trim();
  const std::size_t in_use = pool.stats().in_use;
  pool.set_limit(in_use + 1);
  const std::string use = " are in use, 0 B cached, and the limit is ";
  const auto ends = [&](std::string text) {  // what the pool holds beside x is not this test's affair
    const std::size_t at = text.find("left: ");
    return at == text.npos || text.find(use) == text.npos ? text : text.substr(0, at);
  };
  EXPECT_EQ(ends(text_of([&] { (x * 2).wait(); }, __FILE__, __LINE__)), "[mul] FILE:LINE: the host has no 1.00 MiB ");
  const LayerScope layer("encoder.2");
  EXPECT_EQ(ends(text_of([&] { exp(x * 2).to_vector<float>(); }, __FILE__, __LINE__)),
            "[mul] FILE:LINE in encoder.2: the host has no 1.00 MiB ");
  pool.set_limit(0);
  EXPECT_EQ((x * 2).to_vector<float>()[7], 2) << "and when there is memory again, it works again";
}

}  // namespace
}  // namespace sluice::testing
