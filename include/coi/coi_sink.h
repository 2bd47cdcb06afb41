/* COI on the card (the "sink"): libcoi_device. See coi(7).
 *
 * A sink program begins with COIPipelineStartExecutingRunFunctions and then waits in COIProcessWaitForShutdown; what its main
 * returns reaches the caller of COIProcessDestroy. Run functions have the type
 *
 *   void function(uint32_t buffers, void **buffer, uint64_t *length, void *misc, uint16_t misc_length,
 *                 void *answer, uint16_t answer_length);
 *
 * and are found by their exported names: link the program with -rdynamic. */
#ifndef SNAPIFY_COI_SINK_H
#define SNAPIFY_COI_SINK_H

#include "coi_common.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef void (*RunFunctionPtr_t)(uint32_t buffers, void **buffer, uint64_t *length, void *misc, uint16_t misc_length,
                                 void *answer, uint16_t answer_length);

/* Lets run functions run; those that came before waited. */
COIACCESSAPI COIRESULT COIPipelineStartExecutingRunFunctions(void);
/* Waits until the host destroys this process. */
COIACCESSAPI COIRESULT COIProcessWaitForShutdown(void);
/* Sends out what was printed. */
COIACCESSAPI COIRESULT COIProcessProxyFlush(void);
/* Loads a library that lies on the card, so that its functions can be found. */
COIACCESSAPI COIRESULT COIProcessLoadSinkLibraryFromFile(const char *file, const char *name, const char *search,
                                                         uint32_t flags, COILIBRARY *library);
/* Keeps the memory of a buffer, even if the host destroys the buffer, until it is released as often. */
COIACCESSAPI COIRESULT COIBufferAddRef(void *buffer);
COIACCESSAPI COIRESULT COIBufferReleaseRef(void *buffer);

#ifdef __cplusplus
}
#endif

#endif
