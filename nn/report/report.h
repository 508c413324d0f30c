// What a run tells and is told: numbers by step, how far it is, where its time goes, when it ends.
#pragma once

#include "sluice/nn/report/interrupt.h"  // Interrupt
#include "sluice/nn/report/log.h"        // Log
#include "sluice/nn/report/patience.h"   // Patience
#include "sluice/nn/report/profile.h"    // Profile
#include "sluice/nn/report/progress.h"   // Progress
