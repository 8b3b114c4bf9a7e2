// SPDX-License-Identifier: Apache-2.0
#include "tests/rendezvous/eager_world.h"
