#include "../coi_common.h"
