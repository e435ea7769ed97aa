#import <Cocoa/Cocoa.h>
#import <objc/message.h>
#import <objc/runtime.h>

#include "_cgo_export.h"
#include "system_darwin.h"

// The functions below become methods of classes that Wails defines. They run on the main thread and call Go only through functions
// that return at once (see system_darwin.go).

// A click on the Dock icon brings the window back, however it was hidden.
static BOOL reopen(id self, SEL command, NSApplication *application, BOOL visible) {
	(void)self, (void)command, (void)visible;
	[application unhide:nil];
	for (NSWindow *window in [application windows]) {
		if ([window canBecomeMainWindow]) {
			[window makeKeyAndOrderFront:nil];
		}
	}
	return YES;
}

static BOOL secureRestorableState(id self, SEL command, NSApplication *application) {
	(void)self, (void)command, (void)application;
	return YES;
}

static IMP originalTerminate;

// Wails always answers "cancel" and quits by itself later, which makes the system report that Colibri interrupted the log-out. A quit
// that carries a reason comes from the system: it is answered "later", and "yes" once everything is written.
static NSApplicationTerminateReply terminate(id self, SEL command, NSApplication *application) {
	NSAppleEventDescriptor *event = [[NSAppleEventManager sharedAppleEventManager] currentAppleEvent];
	if (event != nil && [event eventID] == kAEQuitApplication && [event attributeDescriptorForKeyword:kAEQuitReason] != nil) {
		colibriLoggingOut();
		return NSTerminateLater;
	}
	return ((NSApplicationTerminateReply(*)(id, SEL, NSApplication *))originalTerminate)(self, command, application);
}

// Wails turns every dropped URL into a file path, which ends the program for a link from a browser, and joins paths with line
// breaks. Files go to Go one by one; everything else is WebKit's to insert as text.
static BOOL performDrop(id self, SEL command, id<NSDraggingInfo> sender) {
	NSArray<NSURL *> *files = [[sender draggingPasteboard] readObjectsForClasses:@[ [NSURL class] ]
	                                                                     options:@{NSPasteboardURLReadingFileURLsOnlyKey : @YES}];
	if ([files count] == 0) {
		struct objc_super super = {self, class_getSuperclass(objc_getClass("WailsWebView"))};
		return ((BOOL(*)(struct objc_super *, SEL, id))objc_msgSendSuper)(&super, command, sender);
	}
	for (NSURL *file in files) {
		const char *path = [file fileSystemRepresentation];
		if (path != NULL) {
			colibriDropped((char *)path);
		}
	}
	return YES;
}

void colibri_install_hooks(void) {
	dispatch_async(dispatch_get_main_queue(), ^{
	  Class delegate = object_getClass([NSApp delegate]);
	  class_addMethod(delegate, @selector(applicationShouldHandleReopen:hasVisibleWindows:), (IMP)reopen, "c@:@c");
	  class_addMethod(delegate, @selector(applicationSupportsSecureRestorableState:), (IMP)secureRestorableState, "c@:@");
	  Method method = class_getInstanceMethod(delegate, @selector(applicationShouldTerminate:));
	  if (method != NULL) {
		  originalTerminate = method_setImplementation(method, (IMP)terminate);
	  }
	  Class view = objc_getClass("WailsWebView");
	  if (view != Nil) {
		  class_replaceMethod(view, @selector(performDragOperation:), (IMP)performDrop, "c@:@");
	  }
	  NSNotificationCenter *center = [[NSWorkspace sharedWorkspace] notificationCenter];
	  [center addObserverForName:NSWorkspaceWillSleepNotification
	                      object:nil
	                       queue:nil
	                  usingBlock:^(NSNotification *note) {
		                (void)note;
		                colibriSleeping(1);
	                  }];
	  [center addObserverForName:NSWorkspaceDidWakeNotification
	                      object:nil
	                       queue:nil
	                  usingBlock:^(NSNotification *note) {
		                (void)note;
		                colibriSleeping(0);
	                  }];
	});
}

void colibri_reply_terminate(void) {
	dispatch_async(dispatch_get_main_queue(), ^{
	  [NSApp replyToApplicationShouldTerminate:YES];
	});
}
