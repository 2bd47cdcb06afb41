#include "../coi_source.h"
