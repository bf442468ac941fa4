#pragma once
// Training of a program's own: losses, optimizers, data, models, callbacks, trainers.
//
// train/training.h is where to begin; link Troupe::train.

#include "troupe/train/parts.h"
#include "troupe/train/trainer_actor.h"
#include "troupe/train/training.h"
#include "troupe/train/training_view.h"
