#include "../coi_sink.h"
