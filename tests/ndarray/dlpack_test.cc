// DLPack without another library: what NumPy's version cannot show (dlpack_numpy.py has the rest).
#include "sluice/ndarray/dlpack.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>

#include "sluice/operators/operators.h"

namespace sluice {
namespace {

/// Another library's tensor of six floats.
struct Foreign {
  std::array<float, 6> data{0, 1, 2, 3, 4, 5};
  std::array<std::int64_t, 2> shape{2, 3}, strides{3, 1};
  std::atomic<int> deleted{0};
  std::thread::id deleted_by;
  dlpack::ManagedTensorVersioned managed{{1, 0},
                                         this,
                                         [](dlpack::ManagedTensorVersioned* m) {
                                           auto& it = *static_cast<Foreign*>(m->manager);
                                           it.deleted_by = std::this_thread::get_id();
                                           ++it.deleted;
                                         },
                                         0,
                                         {data.data(), {1, 0}, 2, {2, 32, 1}, shape.data(), strides.data(), 0}};
};

float* data_of(const NDArray& x) { return const_cast<float*>(x.borrow<const float>().data()); }

TEST(DLPack, ExportsASnapshotThatIsReadOnly) {
  NDArray x = from({1.F, 2.F, 3.F}, {3});
  dlpack::ManagedTensorVersioned* const tensor = to_dlpack(x);
  EXPECT_EQ(tensor->version.major, 1u);
  EXPECT_EQ(tensor->flags, dlpack::kReadOnly);
  EXPECT_EQ(tensor->tensor.data, data_of(x));
  x += 1;
  EXPECT_EQ(static_cast<float*>(tensor->tensor.data)[0], 1.F);
  EXPECT_EQ(x(0).item<float>(), 2.F);
  const float* const address = data_of(x);
  tensor->deleter(tensor);
  x += 1;
  EXPECT_EQ(data_of(x), address);
}

TEST(DLPack, CopiesWhereOthersMayWriteTheMemory) {
  Foreign foreign;
  {
    NDArray x = from_dlpack(&foreign.managed);
    dlpack::ManagedTensorVersioned* const tensor = to_dlpack(x);
    EXPECT_NE(tensor->tensor.data, foreign.data.data());
    x.fill(9);
    x.wait();
    EXPECT_EQ(static_cast<float*>(tensor->tensor.data)[5], 5.F);
    EXPECT_EQ(foreign.data[5], 9.F);
    tensor->deleter(tensor);
  }
  default_engine().wait_all();
}

TEST(DLPack, AWritableExportIsABorrow) {
  NDArray x = from({1.F, 2.F, 3.F}, {3});
  const NDArray before = x.detach();
  dlpack::ManagedTensorVersioned* const tensor = to_dlpack_writable(x);
  EXPECT_EQ(tensor->flags, 0u);
  const NDArray after = x + 0.;  // waits for the borrow
  static_cast<float*>(tensor->tensor.data)[1] = 20;
  tensor->deleter(tensor);
  EXPECT_EQ(after(1).item<float>(), 20.F);
  EXPECT_EQ(x(1).item<float>(), 20.F);
  EXPECT_EQ(before(1).item<float>(), 2.F) << "the value that was held is not written";
}

TEST(DLPack, ImportsShareOneMemoryAndGiveItBackOnAnotherThread) {
  Foreign foreign;
  {
    NDArray x = from_dlpack(&foreign.managed);
    EXPECT_EQ(data_of(x), foreign.data.data());
    NDArray same = from_memory(foreign.data.data(), nullptr, {6}, DType::f32, cpu(0));
    x += 1;
    same *= 2;
    EXPECT_EQ(x(1, 2).item<float>(), 12.F);
    EXPECT_EQ(foreign.deleted, 0);
  }
  default_engine().wait_all();
  EXPECT_EQ(foreign.deleted, 1);
  EXPECT_NE(foreign.deleted_by, std::this_thread::get_id());
}

TEST(DLPack, AReadOnlyImportCopiesAtItsFirstWrite) {
  Foreign foreign;
  foreign.managed.flags = dlpack::kReadOnly;
  {
    NDArray x = from_dlpack(&foreign.managed);
    const NDArray row = x(1);
    EXPECT_EQ(data_of(x), foreign.data.data());
    x(0) += 10.;
    EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{10, 11, 12, 3, 4, 5}));
    EXPECT_EQ(row.to_vector<float>(), (std::vector<float>{3, 4, 5}));
    EXPECT_NE(data_of(x), foreign.data.data());
    EXPECT_EQ(foreign.data, (std::array<float, 6>{0, 1, 2, 3, 4, 5}));
  }
  default_engine().wait_all();
  EXPECT_EQ(foreign.deleted, 1);
}

TEST(DLPack, RefusesWhatItCannotShow) {
  const auto refuses = [](const std::string& words, const auto& change) {
    Foreign foreign;
    change(foreign);
    try {
      from_dlpack(&foreign.managed);
      ADD_FAILURE() << "taken, wanted: " << words;
    } catch (const ArrayError& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
    default_engine().wait_all();
    EXPECT_EQ(foreign.deleted, 1) << words;
  };
  refuses("version 2.0, wanted 1", [](Foreign& f) { f.managed.version.major = 2; });
  refuses("device 2, wanted 1", [](Foreign& f) { f.managed.tensor.device.type = 2; });
  refuses("code 2, 24 bits", [](Foreign& f) { f.managed.tensor.dtype.bits = 24; });
  refuses("4 lanes", [](Foreign& f) { f.managed.tensor.dtype.lanes = 4; });
  refuses("rank 9, wanted 0 to 8", [](Foreign& f) { f.managed.tensor.ndim = 9; });
  refuses("cannot be counted", [](Foreign& f) { f.shape[0] = -1; });
  refuses("cannot be counted", [](Foreign& f) { f.strides[0] = INT64_MAX; });
  refuses("not aligned for f32", [](Foreign& f) { f.managed.tensor.byte_offset = 2; });
  refuses("no memory", [](Foreign& f) { f.managed.tensor.data = nullptr; });
  EXPECT_THROW(from_dlpack(static_cast<dlpack::ManagedTensor*>(nullptr)), ArrayError);
  EXPECT_THROW(to_dlpack(NDArray()), ArrayError);
}

}  // namespace
}  // namespace sluice
