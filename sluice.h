// All of Sluice.
#pragma once

#include "sluice/autograd/autograd.h"    // backward, grad
#include "sluice/engine/engine.h"        // Engine, push, wait
#include "sluice/ndarray/ndarray.h"      // NDArray, NoGrad
#include "sluice/nn/nets.h"              // networks, optimisers, data
#include "sluice/operators/operators.h"  // operators on arrays
#include "sluice/parallel/parallel.h"
#include "sluice/resources/resources.h"  // memory pools, random streams
