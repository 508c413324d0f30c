// What operations borrow: device memory, scratch space, random streams.
#pragma once

#include "sluice/resources/cuda/cuda.h"         // GPUs
#include "sluice/resources/device_pool.h"       // DevicePool
#include "sluice/resources/host_device.h"       // SLUICE_HD
#include "sluice/resources/memory_pool.h"       // MemoryPool
#include "sluice/resources/memory_summary.h"    // memory_summary
#include "sluice/resources/microbatch_draws.h"  // MicrobatchDraws
#include "sluice/resources/object_pool.h"       // ObjectPool
#include "sluice/resources/philox.h"            // counter-based random numbers
#include "sluice/resources/random.h"            // RandomStream
#include "sluice/resources/scratch.h"           // Scratch
