// The part of Foundation and AppKit that Colibri's window uses.
#pragma once
#include <dispatch/dispatch.h>
#include <stddef.h>
#include <stdint.h>

typedef unsigned long NSUInteger;
typedef long NSInteger;
#if defined(__arm64__)
typedef _Bool BOOL;
#else
typedef signed char BOOL;
#endif
#define YES __objc_yes
#define NO __objc_no
#define nil ((id)0)

@class NSString, NSArray<Element>, NSWindow, NSAppleEventDescriptor;

@protocol NSObject
- (BOOL)respondsToSelector:(SEL)selector;
@end

@protocol NSCopying
@end

typedef struct {
	unsigned long state;
	id __unsafe_unretained *itemsPtr;
	unsigned long *mutationsPtr;
	unsigned long extra[5];
} NSFastEnumerationState;
@protocol NSFastEnumeration
- (NSUInteger)countByEnumeratingWithState:(NSFastEnumerationState *)state objects:(id __unsafe_unretained[])buffer count:(NSUInteger)count;
@end

__attribute__((objc_root_class))
@interface NSObject <NSObject>
+ (Class)class;
@end

@interface NSString : NSObject <NSCopying>
@end

@interface NSNumber : NSObject
+ (NSNumber *)numberWithBool:(BOOL)value;
@end

@interface NSArray<Element> : NSObject <NSFastEnumeration>
@property (readonly) NSUInteger count;
+ (instancetype)arrayWithObjects:(const Element[])objects count:(NSUInteger)count;
@end

@interface NSDictionary<Key, Value> : NSObject
+ (instancetype)dictionaryWithObjects:(const Value[])values forKeys:(const id<NSCopying>[])keys count:(NSUInteger)count;
@end

@interface NSURL : NSObject
@property (readonly) const char *fileSystemRepresentation;
@end

@class NSNotification, NSOperationQueue;
@interface NSNotificationCenter : NSObject
- (id<NSObject>)addObserverForName:(NSString *)name object:(id)object queue:(NSOperationQueue *)queue usingBlock:(void (^)(NSNotification *note))block;
@end

typedef uint32_t AEEventID, AEKeyword;
enum { kAEQuitApplication = 0x71756974, kAEQuitReason = 0x7768793f };
@interface NSAppleEventDescriptor : NSObject
@property (readonly) AEEventID eventID;
- (NSAppleEventDescriptor *)attributeDescriptorForKeyword:(AEKeyword)keyword;
@end
@interface NSAppleEventManager : NSObject
+ (NSAppleEventManager *)sharedAppleEventManager;
@property (readonly, retain) NSAppleEventDescriptor *currentAppleEvent;
@end

typedef NSUInteger NSApplicationTerminateReply;
enum { NSTerminateCancel = 0, NSTerminateNow = 1, NSTerminateLater = 2 };
@protocol NSApplicationDelegate <NSObject>
@end
@interface NSApplication : NSObject
@property (assign) id<NSApplicationDelegate> delegate;
@property (readonly, copy) NSArray<NSWindow *> *windows;
- (void)unhide:(id)sender;
- (void)replyToApplicationShouldTerminate:(BOOL)answer;
@end
extern NSApplication *NSApp;

@interface NSWindow : NSObject
@property (readonly) BOOL canBecomeMainWindow;
- (void)makeKeyAndOrderFront:(id)sender;
@end

typedef NSString *NSPasteboardReadingOptionKey;
extern NSPasteboardReadingOptionKey const NSPasteboardURLReadingFileURLsOnlyKey;
@interface NSPasteboard : NSObject
- (NSArray *)readObjectsForClasses:(NSArray<Class> *)classes options:(NSDictionary<NSPasteboardReadingOptionKey, id> *)options;
@end
@protocol NSDraggingInfo <NSObject>
@property (readonly) NSPasteboard *draggingPasteboard;
@end

@interface NSWorkspace : NSObject
@property (class, readonly, retain) NSWorkspace *sharedWorkspace;
@property (readonly, retain) NSNotificationCenter *notificationCenter;
@end
extern NSString *const NSWorkspaceWillSleepNotification, *const NSWorkspaceDidWakeNotification;
