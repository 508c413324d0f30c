// Stands for the driver's library of CUDA, for cards_test.cc: a machine with seven cards.
extern "C" {
int cuInit(unsigned flags);
int cuDeviceGetCount(int* count);

int cuInit(unsigned flags) { return flags == 0 ? 0 : 1; }
int cuDeviceGetCount(int* count) {
  *count = 7;
  return 0;
}
}
