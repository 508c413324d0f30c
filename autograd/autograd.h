// Automatic differentiation.
#pragma once

#include "sluice/autograd/gradients.h"  // NoGrad, backward, grad
