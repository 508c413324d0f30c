// A grid's blocks, one after the other, and their threads.
#include "grid.h"

#include "cuda_double/kernel.h"

namespace cuda_double {
namespace {

thread_local uint3 thread_here{}, block_here{};
thread_local uint3 block_size_here{}, grid_size_here{};

}  // namespace

void Grid::run() {
  block_size_here = launch.block;
  grid_size_here = launch.grid;
  const dim3 &g = launch.grid, &b = launch.block;
  for (unsigned z = 0; z < g.z; ++z) {
    for (unsigned y = 0; y < g.y; ++y) {
      for (unsigned x = 0; x < g.x; ++x) {
        block_here = {x, y, z};
        for (unsigned k = 0; k < b.z; ++k) {
          for (unsigned j = 0; j < b.y; ++j) {
            for (unsigned i = 0; i < b.x; ++i) {
              thread_here = {i, j, k};
              launch.thread();
            }
          }
        }
      }
    }
  }
}

uint3 thread_index() noexcept { return thread_here; }
uint3 block_index() noexcept { return block_here; }
dim3 block_size() noexcept { return block_size_here; }
dim3 grid_size() noexcept { return grid_size_here; }

}  // namespace cuda_double
