// Everything of the public C++ API.
#pragma once

#include "deltawire/patch.h"
#include "deltawire/publisher.h"
#include "deltawire/subscriber.h"
