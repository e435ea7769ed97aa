// The part of Metal that Colibri's host uses, in our own words: protocols, classes, enumerations with the values of Apple's
// interface. Availability is that of macOS 13 except where said.
#pragma once
#import <Foundation/Foundation.h>

#ifdef __cplusplus
extern "C" {
#endif

@protocol MTLDevice;
@protocol MTLCommandQueue;
@protocol MTLCommandBuffer;
@protocol MTLComputePipelineState;

typedef struct {
    NSUInteger width, height, depth;
} MTLSize;
static inline MTLSize MTLSizeMake(NSUInteger width, NSUInteger height, NSUInteger depth) {
    MTLSize size = {width, height, depth};
    return size;
}

typedef enum MTLGPUFamily : NSInteger {
    MTLGPUFamilyApple7 = 1007,
    MTLGPUFamilyMetal3 = 5001,
} MTLGPUFamily;

typedef NSUInteger MTLResourceOptions;
enum : NSUInteger {
    MTLResourceCPUCacheModeDefaultCache = 0,
    MTLResourceStorageModeShared = 0,
    MTLResourceHazardTrackingModeUntracked = 0x100,
};

typedef NSUInteger MTLResourceUsage;
enum : NSUInteger { MTLResourceUsageRead = 1, MTLResourceUsageWrite = 2 };

typedef NSUInteger MTLBarrierScope;
enum : NSUInteger { MTLBarrierScopeBuffers = 1 };

typedef enum MTLDispatchType : NSUInteger {
    MTLDispatchTypeSerial = 0,
    MTLDispatchTypeConcurrent = 1,
} MTLDispatchType;

typedef enum MTLCommandBufferStatus : NSUInteger {
    MTLCommandBufferStatusNotEnqueued = 0,
    MTLCommandBufferStatusEnqueued = 1,
    MTLCommandBufferStatusCommitted = 2,
    MTLCommandBufferStatusScheduled = 3,
    MTLCommandBufferStatusCompleted = 4,
    MTLCommandBufferStatusError = 5,
} MTLCommandBufferStatus;

// Codes that the driver uses without naming them exist (14, "impacting interactivity"): never switch over these exhaustively.
typedef enum MTLCommandBufferError : NSUInteger {
    MTLCommandBufferErrorNone = 0,
    MTLCommandBufferErrorInternal = 1,
    MTLCommandBufferErrorTimeout = 2,
    MTLCommandBufferErrorPageFault = 3,
    MTLCommandBufferErrorAccessRevoked = 4,
    MTLCommandBufferErrorNotPermitted = 7,
    MTLCommandBufferErrorOutOfMemory = 8,
    MTLCommandBufferErrorInvalidResource = 9,
    MTLCommandBufferErrorDeviceRemoved = 11,
} MTLCommandBufferError;
extern NSString *const MTLCommandBufferErrorDomain;

typedef enum MTLLanguageVersion : NSUInteger { MTLLanguageVersion3_0 = 196608 } MTLLanguageVersion;

typedef enum MTLDataType : NSUInteger {
    MTLDataTypeInt = 29,
    MTLDataTypeUInt = 33,
    MTLDataTypeBool = 53,
} MTLDataType;

// macOS 15 (SDK 15) from here to the end of the residency set; a build against an older SDK leaves all of it out.
#if !defined(__MAC_OS_X_VERSION_MAX_ALLOWED) || __MAC_OS_X_VERSION_MAX_ALLOWED >= 150000
#define COLI_DECLARES_MACOS_15 1
typedef enum MTLMathMode : NSInteger {
    MTLMathModeSafe = 0,
    MTLMathModeRelaxed = 1,
    MTLMathModeFast = 2,
} MTLMathMode;
typedef enum MTLMathFloatingPointFunctions : NSInteger {
    MTLMathFloatingPointFunctionsFast = 0,
    MTLMathFloatingPointFunctionsPrecise = 1,
} MTLMathFloatingPointFunctions;

__attribute__((availability(macos, introduced = 15.0)))
@protocol MTLAllocation <NSObject>
@property (readonly) NSUInteger allocatedSize;
@end

__attribute__((availability(macos, introduced = 15.0)))
@interface MTLResidencySetDescriptor : NSObject
@property (nonatomic, copy) NSString *label;
@property (nonatomic) NSUInteger initialCapacity;
@end

__attribute__((availability(macos, introduced = 15.0)))
@protocol MTLResidencySet <NSObject>
@property (readonly) NSUInteger allocationCount;
- (void)addAllocation:(id<MTLAllocation>)allocation;
- (void)removeAllocation:(id<MTLAllocation>)allocation;
- (void)removeAllAllocations;
- (BOOL)containsAllocation:(id<MTLAllocation>)allocation;
- (void)commit;
- (void)requestResidency;
- (void)endResidency;
@end

@protocol MTLResource <MTLAllocation>
#else
@protocol MTLResource <NSObject>
#endif
@property (copy, atomic) NSString *label;
@end

@protocol MTLBuffer <MTLResource>
@property (readonly) NSUInteger length;
@property (readonly) uint64_t gpuAddress;
- (void *)contents;
@end

@interface MTLCompileOptions : NSObject
@property (nonatomic) MTLLanguageVersion languageVersion;
@property (nonatomic) BOOL fastMathEnabled; // superseded in macOS 15 by the next two
#ifdef COLI_DECLARES_MACOS_15
@property (nonatomic) MTLMathMode mathMode __attribute__((availability(macos, introduced = 15.0)));
@property (nonatomic) MTLMathFloatingPointFunctions mathFloatingPointFunctions __attribute__((availability(macos, introduced = 15.0)));
#endif
@end

@interface MTLFunctionConstantValues : NSObject
- (void)setConstantValue:(const void *)value type:(MTLDataType)type atIndex:(NSUInteger)index;
@end

@protocol MTLFunction <NSObject>
@property (readonly) NSString *name;
@end

@protocol MTLLibrary <NSObject>
@property (readonly) NSArray *functionNames;
- (id<MTLFunction>)newFunctionWithName:(NSString *)name
                        constantValues:(MTLFunctionConstantValues *)values
                                 error:(NSError **)error __attribute__((ns_returns_retained));
@end

@protocol MTLComputePipelineState <NSObject>
@property (readonly) NSUInteger maxTotalThreadsPerThreadgroup;
@property (readonly) NSUInteger threadExecutionWidth;
@property (readonly) NSUInteger staticThreadgroupMemoryLength;
@end

@protocol MTLComputeCommandEncoder <NSObject>
@property (copy, atomic) NSString *label;
- (void)setComputePipelineState:(id<MTLComputePipelineState>)state;
- (void)setBytes:(const void *)bytes length:(NSUInteger)length atIndex:(NSUInteger)index; // length below 4096
- (void)dispatchThreadgroups:(MTLSize)groups threadsPerThreadgroup:(MTLSize)threads;
- (void)useResource:(id<MTLResource>)resource usage:(MTLResourceUsage)usage;
- (void)memoryBarrierWithScope:(MTLBarrierScope)scope;
- (void)endEncoding;
@end

@protocol MTLCommandBuffer <NSObject>
@property (copy, atomic) NSString *label;
@property (readonly) MTLCommandBufferStatus status;
@property (readonly) NSError *error;
@property (readonly) double GPUStartTime; // seconds, once completed
@property (readonly) double GPUEndTime;
- (id<MTLComputeCommandEncoder>)computeCommandEncoderWithDispatchType:(MTLDispatchType)type; // autoreleased
- (void)commit;
- (void)waitUntilCompleted;
@end

@protocol MTLCommandQueue <NSObject>
- (id<MTLCommandBuffer>)commandBuffer; // autoreleased
#ifdef COLI_DECLARES_MACOS_15
- (void)addResidencySet:(id<MTLResidencySet>)set __attribute__((availability(macos, introduced = 15.0)));
- (void)removeResidencySet:(id<MTLResidencySet>)set __attribute__((availability(macos, introduced = 15.0)));
#endif
@end

@protocol MTLDevice <NSObject>
@property (readonly) NSString *name;
@property (readonly) BOOL hasUnifiedMemory;
@property (readonly) uint64_t recommendedMaxWorkingSetSize;
@property (readonly) NSUInteger currentAllocatedSize;
@property (readonly) NSUInteger maxBufferLength;
- (BOOL)supportsFamily:(MTLGPUFamily)family;
- (id<MTLCommandQueue>)newCommandQueue __attribute__((ns_returns_retained));
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options __attribute__((ns_returns_retained));
- (id<MTLBuffer>)newBufferWithBytesNoCopy:(void *)pointer
                                   length:(NSUInteger)length
                                  options:(MTLResourceOptions)options
                              deallocator:(void (^)(void *pointer, NSUInteger length))deallocator __attribute__((ns_returns_retained));
- (id<MTLLibrary>)newLibraryWithSource:(NSString *)source
                               options:(MTLCompileOptions *)options
                                 error:(NSError **)error __attribute__((ns_returns_retained));
- (id<MTLComputePipelineState>)newComputePipelineStateWithFunction:(id<MTLFunction>)function
                                                             error:(NSError **)error __attribute__((ns_returns_retained));
#ifdef COLI_DECLARES_MACOS_15
- (id<MTLResidencySet>)newResidencySetWithDescriptor:(MTLResidencySetDescriptor *)descriptor
                                               error:(NSError **)error
    __attribute__((ns_returns_retained, availability(macos, introduced = 15.0)));
#endif
@end

id<MTLDevice> MTLCreateSystemDefaultDevice(void) __attribute__((ns_returns_retained));

#ifdef __cplusplus
}
#endif
