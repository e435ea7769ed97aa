// The Metal classes of ../declarations/metal for GNUstep, over the engine. Manual retain and release. Every method is counted and passes the
// rules of engine.h's called(); misuse that Metal answers with an assertion is a report here.
#import <Metal/Metal.h>
#include "colibri_sim.h"
#include "engine.h"
#include "executor.h"
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>

using namespace sim;

NSString *const MTLCommandBufferErrorDomain = @"MTLCommandBufferErrorDomain";
static NSString *const libraryErrorDomain = @"MTLLibraryErrorDomain";

static NSString *text(const std::string &s) { return [NSString stringWithUTF8String:s.c_str()]; }
static std::string plain(NSString *s) { return s ? [s UTF8String] : ""; }
static NSError *makeError(NSString *domain, NSInteger code, const std::string &why) {
    return [NSError errorWithDomain:domain code:code userInfo:[NSDictionary dictionaryWithObject:text(why) forKey:NSLocalizedDescriptionKey]];
}

// What these methods give is autoreleased: without a pool on the thread it is never freed.
static void needPool(const char *method) {
    if ([NSAutoreleasePool currentPool] == nil) report("no autorelease pool", std::string(method) + " is called on a thread without a pool: what it gives leaks");
}

// ---- life and death

static std::mutex liveMutex;
static std::map<std::string, int64_t> &liveObjects() {
    static std::map<std::string, int64_t> *m = new std::map<std::string, int64_t>();
    return *m;
}

int64_t colibri_sim_live_objects(const char *kind) {
    std::lock_guard<std::mutex> lock(liveMutex);
    int64_t n = 0;
    for (auto &entry : liveObjects()) if (!kind || entry.first == kind) n += entry.second;
    return n;
}

// What a released object turns into: every message to it is reported. The newest are kept as such.
@interface SimReleased : NSObject {
@public
    const char *kind;
}
@end
@implementation SimReleased
- (void)report:(SEL)selector { report("released object", std::string("message ") + plain(NSStringFromSelector(selector)) + " to a " + kind + " that has been released"); }
- (id)retain { [self report:_cmd]; return self; }
- (oneway void)release { [self report:_cmd]; }
- (id)autorelease { [self report:_cmd]; return self; }
- (NSMethodSignature *)methodSignatureForSelector:(SEL)selector { (void)selector; return [NSMethodSignature signatureWithObjCTypes:"@@:"]; }
- (void)forwardInvocation:(NSInvocation *)invocation { [self report:[invocation selector]]; }
@end

@interface SimObject : NSObject {
@public
    const char *kind;
}
@end
@implementation SimObject
- (id)initAs:(const char *)name {
    if ((self = [super init])) {
        kind = name;
        std::lock_guard<std::mutex> lock(liveMutex);
        liveObjects()[name]++;
    }
    return self;
}
- (void)dealloc {
    static std::deque<SimReleased *> &released = *new std::deque<SimReleased *>();
    enum { RELEASED_KEPT = 65536 };
    SimReleased *oldest = nil;
    const char *name = kind;
    object_setClass(self, [SimReleased class]);
    ((SimReleased *)self)->kind = name;
    {
        std::lock_guard<std::mutex> lock(liveMutex);
        liveObjects()[name]--;
        released.push_back((SimReleased *)self);
        if (released.size() > RELEASED_KEPT) {
            oldest = released.front();
            released.pop_front();
        }
    }
    if (oldest) NSDeallocateObject(oldest);
    if (NO) [super dealloc]; // the memory stays, as a SimReleased
}
@end

// ---- buffers and residency sets

@interface SimBuffer : SimObject <MTLBuffer> {
@public
    Buffer *buffer;
}
@end
@implementation SimBuffer
- (id)initWith:(Buffer *)b { if ((self = [super initAs:"MTLBuffer"])) buffer = b; return self; }
- (void)dealloc {
    called("MTLBuffer.dealloc");
    if (buffer->sets > 0) report("released while in a residency set", buffer->name() + ": remove it and commit the set first");
    if (inFlight(buffer)) report("buffer released before completion", buffer->name() + ": a command buffer in flight declared it with useResource:");
    forgetAccesses(buffer);
    destroyBuffer(buffer);
    [super dealloc];
}
- (NSUInteger)length { return buffer->length; }
- (NSUInteger)allocatedSize { return buffer->mapped; }
- (uint64_t)gpuAddress { return buffer->gpu; }
- (void *)contents { return buffer->host; }
- (NSString *)label {
    std::lock_guard<std::mutex> lock(buffer->labelMutex);
    return text(buffer->label);
}
- (void)setLabel:(NSString *)label {
    std::lock_guard<std::mutex> lock(buffer->labelMutex);
    buffer->label = plain(label);
}
@end

// The declared classes have no instance variables, and GCC's runtime cannot add them: alloc makes a subclass that has.
#define SIM_SUBCLASS(base, sub) \
    + (id)allocWithZone:(NSZone *)zone { return self == [base class] ? [sub allocWithZone:zone] : [super allocWithZone:zone]; }

@interface SimResidencySetDescriptor : MTLResidencySetDescriptor {
    NSString *_label;
    NSUInteger _initialCapacity;
}
@end
@implementation MTLResidencySetDescriptor
@dynamic label, initialCapacity;
SIM_SUBCLASS(MTLResidencySetDescriptor, SimResidencySetDescriptor)
@end
@implementation SimResidencySetDescriptor
@synthesize label = _label, initialCapacity = _initialCapacity;
- (void)dealloc { [_label release]; [super dealloc]; }
@end

@interface SimResidencySet : SimObject <MTLResidencySet> {
@public
    SetRef set;
}
@end
@implementation SimResidencySet
- (id)initWithLabel:(NSString *)label {
    if ((self = [super initAs:"MTLResidencySet"])) {
        set = std::make_shared<ResidencySet>();
        set->id = nextId();
        set->label = plain(label);
    }
    return self;
}
- (void)dealloc {
    called("MTLResidencySet.dealloc");
    set->removeAll();
    set->commit();
    set.reset();
    [super dealloc];
}
- (NSUInteger)allocationCount { called("allocationCount"); return set->staged.size(); }
- (BOOL)containsAllocation:(id<MTLAllocation>)a { called("containsAllocation:"); return set->staged.count(((SimBuffer *)a)->buffer) != 0; }
- (void)addAllocation:(id<MTLAllocation>)a { called("addAllocation:"); set->add(((SimBuffer *)a)->buffer); }
- (void)removeAllocation:(id<MTLAllocation>)a { called("removeAllocation:"); set->remove(((SimBuffer *)a)->buffer); }
- (void)removeAllAllocations { called("removeAllAllocations"); set->removeAll(); }
- (void)commit { called("MTLResidencySet.commit"); set->commit(); }
- (void)requestResidency { called("requestResidency"); set->enter(); }
- (void)endResidency { called("endResidency"); set->enter(); }
@end

// ---- libraries and pipelines

@interface SimCompileOptions : MTLCompileOptions {
    MTLLanguageVersion _languageVersion;
    BOOL _fastMathEnabled;
    MTLMathMode _mathMode;
    MTLMathFloatingPointFunctions _mathFloatingPointFunctions;
@public
    BOOL modeSet;
}
@end
@implementation MTLCompileOptions
@dynamic languageVersion, fastMathEnabled, mathMode, mathFloatingPointFunctions;
SIM_SUBCLASS(MTLCompileOptions, SimCompileOptions)
@end
@implementation SimCompileOptions
@synthesize languageVersion = _languageVersion, mathFloatingPointFunctions = _mathFloatingPointFunctions;
- (BOOL)fastMathEnabled { return _fastMathEnabled; }
- (void)setFastMathEnabled:(BOOL)on { _fastMathEnabled = on; modeSet = YES; }
- (MTLMathMode)mathMode { return _mathMode; }
- (void)setMathMode:(MTLMathMode)mode { _mathMode = mode; modeSet = YES; }
@end

@interface SimFunctionConstantValues : MTLFunctionConstantValues {
@public
    std::map<NSUInteger, std::pair<MTLDataType, std::string>> *values;
}
@end
@implementation MTLFunctionConstantValues
SIM_SUBCLASS(MTLFunctionConstantValues, SimFunctionConstantValues)
- (void)setConstantValue:(const void *)value type:(MTLDataType)type atIndex:(NSUInteger)index { (void)value, (void)type, (void)index; }
@end
@implementation SimFunctionConstantValues
- (id)init { if ((self = [super init])) values = new std::map<NSUInteger, std::pair<MTLDataType, std::string>>(); return self; }
- (void)dealloc { delete values; [super dealloc]; }
- (void)setConstantValue:(const void *)value type:(MTLDataType)type atIndex:(NSUInteger)index {
    (*values)[index] = {type, std::string((const char *)value, type == MTLDataTypeBool ? 1 : 4)};
}
@end

@interface SimFunction : SimObject <MTLFunction> {
@public
    std::shared_ptr<Pipeline> pipeline;
}
@end
@implementation SimFunction
- (void)dealloc { pipeline.reset(); [super dealloc]; }
- (NSString *)name { return text(pipeline->kernel->name); }
@end

@interface SimLibrary : SimObject <MTLLibrary> {
@public
    Library compiled;
}
@end
@implementation SimLibrary
- (NSArray *)functionNames {
    NSMutableArray *names = [NSMutableArray array];
    for (msl_u32 i = 0; i < compiled.code->kernel_count; i++) [names addObject:text(compiled.code->kernels[i].name)];
    return names;
}
- (id<MTLFunction>)newFunctionWithName:(NSString *)name constantValues:(MTLFunctionConstantValues *)constantValues error:(NSError **)error {
    called("newFunctionWithName:constantValues:error:");
    SimFunctionConstantValues *given = (SimFunctionConstantValues *)constantValues;
    std::string wanted = plain(name), why = "there is no kernel named " + wanted;
    for (msl_u32 k = 0; k < compiled.code->kernel_count; k++) {
        const msl_kernel &kernel = compiled.code->kernels[k];
        if (wanted != kernel.name) continue;
        std::shared_ptr<Pipeline> p = std::make_shared<Pipeline>();
        p->compiled = compiled;
        p->kernel = &kernel;
        why.clear();
        for (msl_u32 c = 0; c < compiled.code->constant_count; c++) {
            const msl_constant &constant = compiled.code->constants[c];
            auto v = given->values->find(constant.index);
            bool needed = false;
            for (msl_u32 n = 0; n < kernel.constant_count; n++) needed |= kernel.constants[n] == c;
            if (v == given->values->end()) {
                if (needed) why = wanted + " needs function constant " + std::to_string(constant.index) + " (" + constant.name + ")";
                continue;
            }
            std::string type = constant.type;
            while (!type.empty() && type.back() == ' ') type.pop_back();
            MTLDataType expected = type == "bool" ? MTLDataTypeBool : type == "int" ? MTLDataTypeInt : MTLDataTypeUInt;
            if (v->second.first != expected) { why = "function constant " + std::to_string(constant.index) + " (" + constant.name + ") is of type " + type; continue; }
            p->values.push_back({&constant, v->second.second});
        }
        if (!why.empty()) break;
        SimFunction *f = [[SimFunction alloc] initAs:"MTLFunction"];
        f->pipeline = p;
        return f;
    }
    if (error) *error = makeError(libraryErrorDomain, 5, why);
    return nil;
}
@end

@interface SimPipeline : SimObject <MTLComputePipelineState> {
@public
    std::shared_ptr<Pipeline> pipeline;
}
@end
@implementation SimPipeline
- (void)dealloc { pipeline.reset(); [super dealloc]; }
- (NSUInteger)maxTotalThreadsPerThreadgroup { return pipeline->maxThreads(); }
- (NSUInteger)threadExecutionWidth { return MSL_LANES; }
- (NSUInteger)staticThreadgroupMemoryLength { return threadgroupBytes(pipeline->compiled.code, pipeline->kernel); }
@end

// ---- command buffers and encoders

@class SimCommandBuffer;
@interface SimEncoder : SimObject <MTLComputeCommandEncoder> {
@public
    SimCommandBuffer *owner; // not retained: an encoder must not outlive its command buffer
    std::shared_ptr<CommandBuffer> work;
    std::shared_ptr<Pipeline> pipeline;
    std::map<NSUInteger, Argument> *arguments;
    NSUInteger number;
    BOOL ended;
    NSString *label;
}
@end
@interface SimCommandBuffer : SimObject <MTLCommandBuffer> {
@public
    std::shared_ptr<CommandBuffer> work;
    SimEncoder *open;
}
@end

@implementation SimEncoder
@synthesize label;
- (void)dealloc {
    if (!ended) report("encoder not ended", "an encoder of " + work->name() + " was released before endEncoding");
    if (!ended && owner && owner->open == self) owner->open = nil;
    delete arguments;
    work.reset();
    pipeline.reset();
    [label release];
    [super dealloc];
}
- (BOOL)usable:(const char *)method {
    called(method);
    if (!ended) return YES;
    report("encoder used after endEncoding", std::string(method) + " on an encoder of " + work->name());
    return NO;
}
- (void)setComputePipelineState:(id<MTLComputePipelineState>)state {
    if ([self usable:"setComputePipelineState:"]) pipeline = ((SimPipeline *)state)->pipeline;
}
- (void)setBytes:(const void *)bytes length:(NSUInteger)length atIndex:(NSUInteger)index {
    if (![self usable:"setBytes:length:atIndex:"]) return;
    if (index >= MSL_BUFFER_SLOTS || length == 0 || length >= 4096) {
        report("setBytes", std::to_string(length) + " bytes at index " + std::to_string(index) + ": below 4096 bytes and index 30 at most");
        return;
    }
    (*arguments)[index] = {work->copyArgument(bytes, length), length};
}
- (void)useResource:(id<MTLResource>)resource usage:(MTLResourceUsage)usage {
    if ([self usable:"useResource:usage:"]) work->encoders[number].resources.push_back({((SimBuffer *)resource)->buffer, usage});
}
- (void)memoryBarrierWithScope:(MTLBarrierScope)scope {
    if ([self usable:"memoryBarrierWithScope:"] && (scope & MTLBarrierScopeBuffers)) work->encoders[number].phase++;
}
- (void)dispatchThreadgroups:(MTLSize)groups threadsPerThreadgroup:(MTLSize)threads {
    if (![self usable:"dispatchThreadgroups:threadsPerThreadgroup:"]) return;
    if (!pipeline) { report("dispatch", "no pipeline state is set in " + work->name()); return; }
    std::string kernel = pipeline->kernel->name;
    uint64_t total = threads.width * threads.height * threads.depth;
    if (!groups.width || !groups.height || !groups.depth || !total) { report("dispatch", kernel + ": a grid or threadgroup dimension is 0"); return; }
    if (groups.width > UINT32_MAX || groups.height > UINT32_MAX || groups.depth > UINT32_MAX) { report("dispatch", kernel + ": a grid dimension exceeds 32 bits"); return; }
    if (total > pipeline->maxThreads()) {
        report("dispatch", kernel + ": " + std::to_string(total) + " threads in a threadgroup, at most " + std::to_string(pipeline->maxThreads()));
        return;
    }
    Command c{};
    c.pipeline = pipeline;
    for (msl_u32 i = 0; i < pipeline->kernel->argument_count; i++) {
        const msl_argument &a = pipeline->kernel->arguments[i];
        auto given = arguments->find(a.index);
        if (a.kind == MSL_ARGUMENT_THREADGROUP) { report("dispatch", kernel + ": dynamic threadgroup memory is not part of the subset"); return; }
        if (given == arguments->end()) { report("dispatch", kernel + ": nothing is set for argument " + a.name + " [[buffer(" + std::to_string(a.index) + ")]]"); return; }
        if (a.reference && given->second.length != a.element_bytes) {
            report("dispatch", kernel + ": argument " + a.name + " is a structure of " + std::to_string(a.element_bytes) + " bytes, given " + std::to_string(given->second.length));
            return;
        }
        c.arguments[a.index] = given->second;
    }
    const uint32_t g[3] = {(uint32_t)groups.width, (uint32_t)groups.height, (uint32_t)groups.depth}, t[3] = {(uint32_t)threads.width, (uint32_t)threads.height, (uint32_t)threads.depth};
    memcpy(c.groups, g, sizeof g);
    memcpy(c.threads, t, sizeof t);
    EncoderState &e = work->encoders[number];
    c.encoder = (uint32_t)number;
    c.phase = e.phase;
    c.resources = (uint32_t)e.resources.size();
    if (e.serial) e.phase++;
    work->commands.push_back(c);
}
- (void)endEncoding {
    if (![self usable:"endEncoding"]) return;
    ended = YES;
    if (owner && owner->open == self) owner->open = nil;
    owner = nil;
}
@end

@implementation SimCommandBuffer
- (void)dealloc {
    if (open) open->owner = nil;
    work.reset();
    [super dealloc];
}
- (NSString *)label { return text(work->label); }
- (void)setLabel:(NSString *)label { work->label = plain(label); }
- (MTLCommandBufferStatus)status {
    called("MTLCommandBuffer.status");
    if ([self finished]) work->observed();
    return (MTLCommandBufferStatus)work->status.load();
}
- (NSError *)error { return work->status == Status::Error ? makeError(MTLCommandBufferErrorDomain, work->errorCode, work->errorText) : nil; }
- (double)GPUStartTime { return [self finished] ? work->start : 0; }
- (double)GPUEndTime { return [self finished] ? work->end : 0; }
- (BOOL)finished { return work->status == Status::Completed || work->status == Status::Error; }
- (id<MTLComputeCommandEncoder>)computeCommandEncoderWithDispatchType:(MTLDispatchType)type {
    called("computeCommandEncoderWithDispatchType:");
    needPool("computeCommandEncoderWithDispatchType:");
    if (work->status != Status::NotEnqueued) { report("command buffer", "encoding into " + work->name() + " after commit"); return nil; }
    if (open) { report("encoder not ended", work->name() + ": a second encoder is opened while the first is open"); return nil; }
    SimEncoder *e = [[SimEncoder alloc] initAs:"MTLComputeCommandEncoder"];
    e->owner = self;
    e->work = work;
    e->arguments = new std::map<NSUInteger, Argument>();
    e->number = work->encoders.size();
    work->encoders.push_back({});
    work->encoders.back().serial = type == MTLDispatchTypeSerial;
    open = e;
    return [e autorelease];
}
- (void)commit {
    called("MTLCommandBuffer.commit");
    if (work->status != Status::NotEnqueued) { report("command buffer", work->name() + " is committed twice"); return; }
    if (open) { report("encoder not ended", work->name() + " is committed with an open encoder"); return; }
    work->commit();
}
- (void)waitUntilCompleted {
    called("waitUntilCompleted");
    if (work->status == Status::NotEnqueued) { report("command buffer", "waitUntilCompleted on " + work->name() + ", which was never committed"); return; }
    work->wait();
}
@end

@interface SimQueue : SimObject <MTLCommandQueue> {
@public
    std::shared_ptr<QueueState> queue;
}
@end
@implementation SimQueue
- (void)dealloc { queue.reset(); [super dealloc]; }
- (id<MTLCommandBuffer>)commandBuffer {
    called("commandBuffer");
    needPool("commandBuffer");
    SimCommandBuffer *b = [[SimCommandBuffer alloc] initAs:"MTLCommandBuffer"];
    b->work = std::make_shared<CommandBuffer>(queue);
    return [b autorelease];
}
- (void)addResidencySet:(id<MTLResidencySet>)set {
    called("addResidencySet:");
    if (queue->sets.size() >= 32) { report("residency set", "more than 32 sets on a queue"); return; }
    queue->sets.push_back(((SimResidencySet *)set)->set);
}
- (void)removeResidencySet:(id<MTLResidencySet>)set {
    called("removeResidencySet:");
    for (size_t i = 0; i < queue->sets.size(); i++)
        if (queue->sets[i] == ((SimResidencySet *)set)->set) { queue->sets.erase(queue->sets.begin() + (long)i); return; }
    report("residency set", "removeResidencySet: of a set that is not on the queue");
}
@end

// ---- the device

@interface SimDevice : SimObject <MTLDevice>
@end
@implementation SimDevice
- (NSString *)name { return @"Simulated M-series GPU"; }
- (BOOL)hasUnifiedMemory { return YES; }
- (uint64_t)recommendedMaxWorkingSetSize { return options().working_set ? options().working_set : 1ull << 40; }
- (NSUInteger)currentAllocatedSize { return allocatedBytes(); }
- (NSUInteger)maxBufferLength { return options().max_buffer_length ? options().max_buffer_length : 1ull << 40; }
- (BOOL)supportsFamily:(MTLGPUFamily)family { return family == MTLGPUFamilyApple7 || family == MTLGPUFamilyMetal3; }
- (BOOL)respondsToSelector:(SEL)selector {
    if (options().residency_sets == 2 && sel_isEqual(selector, @selector(newResidencySetWithDescriptor:error:))) return NO;
    return [super respondsToSelector:selector];
}
- (id<MTLCommandQueue>)newCommandQueue {
    called("newCommandQueue");
    SimQueue *q = [[SimQueue alloc] initAs:"MTLCommandQueue"];
    q->queue = std::make_shared<QueueState>();
    return q;
}
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)resourceOptions {
    called("newBufferWithLength:options:");
    (void)resourceOptions;
    std::string why;
    if (takeAllocationFault() || length > [self maxBufferLength]) return nil;
    Buffer *b = createBuffer(length, why);
    return b ? [[SimBuffer alloc] initWith:b] : nil;
}
- (id<MTLBuffer>)newBufferWithBytesNoCopy:(void *)pointer length:(NSUInteger)length options:(MTLResourceOptions)resourceOptions deallocator:(void (^)(void *, NSUInteger))deallocator {
    called("newBufferWithBytesNoCopy:length:options:deallocator:");
    std::string why;
    if (deallocator) report("newBufferWithBytesNoCopy", "a deallocator is not part of the subset: the memory's owner frees it");
    if ((resourceOptions & 0xf0) != MTLResourceStorageModeShared) { report("newBufferWithBytesNoCopy", "storage must be shared"); return nil; }
    if (takeAllocationFault() || length > [self maxBufferLength]) return nil;
    Buffer *b = wrapBuffer(pointer, length, why);
    return b ? [[SimBuffer alloc] initWith:b] : nil;
}
- (id<MTLLibrary>)newLibraryWithSource:(NSString *)source options:(MTLCompileOptions *)compileOptions error:(NSError **)error {
    called("newLibraryWithSource:options:error:");
    CompileRequest r;
    r.source = plain(source);
    r.strict = options().strict;
    if (compileOptions && compileOptions.languageVersion) r.languageVersion = (unsigned)(compileOptions.languageVersion >> 16) * 100 + (unsigned)(compileOptions.languageVersion & 0xffff) * 10;
    if (!compileOptions || !((SimCompileOptions *)compileOptions)->modeSet) report("compile options", "set the math mode: Apple's default differs between systems");
    SimLibrary *l = [[SimLibrary alloc] initAs:"MTLLibrary"];
    std::string why;
    if (compile(r, l->compiled, why)) return l;
    [l release];
    if (error) *error = makeError(libraryErrorDomain, 3, why);
    return nil;
}
- (id<MTLComputePipelineState>)newComputePipelineStateWithFunction:(id<MTLFunction>)function error:(NSError **)error {
    called("newComputePipelineStateWithFunction:error:");
    std::shared_ptr<Pipeline> p = ((SimFunction *)function)->pipeline;
    uint64_t bytes = threadgroupBytes(p->compiled.code, p->kernel);
    std::string why;
    if (takePipelineFault(p->kernel->name)) why = std::string("injected failure of ") + p->kernel->name;
    if (bytes > THREADGROUP_MEMORY_BYTES) why = std::string(p->kernel->name) + " uses " + std::to_string(bytes) + " bytes of threadgroup memory, more than 32768";
    if (!why.empty()) {
        if (error) *error = makeError(@"AGXMetalCompilerError", 3, why);
        return nil;
    }
    SimPipeline *s = [[SimPipeline alloc] initAs:"MTLComputePipelineState"];
    p->specialise(true);
    s->pipeline = p;
    return s;
}
- (id<MTLResidencySet>)newResidencySetWithDescriptor:(MTLResidencySetDescriptor *)descriptor error:(NSError **)error {
    called("newResidencySetWithDescriptor:error:");
    if (options().residency_sets) {
        if (options().residency_sets == 2) report("residency set", "newResidencySetWithDescriptor: on a system that does not know it");
        if (error) *error = makeError(@"MTLDeviceError", 1, "residency sets are not supported by this device");
        return nil;
    }
    return [[SimResidencySet alloc] initWithLabel:descriptor.label];
}
@end

id<MTLDevice> MTLCreateSystemDefaultDevice(void) {
    called("MTLCreateSystemDefaultDevice");
    if (options().no_device) return nil;
    return [[SimDevice alloc] initAs:"MTLDevice"];
}
