// What a run tells: numbers by step, how far it is, when it is enough.
#pragma once

#include "sluice/nn/report/log.h"       // Log
#include "sluice/nn/report/patience.h"  // Patience
#include "sluice/nn/report/progress.h"  // Progress
