// The part of the Objective-C runtime that Colibri uses.
#pragma once
typedef struct objc_method *Method;
typedef void (*IMP)(void /* id, SEL, … */);
#define Nil ((Class)0)
Class objc_getClass(const char *name);
Class object_getClass(id object);
Class class_getSuperclass(Class of);
Method class_getInstanceMethod(Class of, SEL name);
BOOL class_addMethod(Class to, SEL name, IMP implementation, const char *types);
IMP class_replaceMethod(Class of, SEL name, IMP implementation, const char *types);
IMP method_setImplementation(Method method, IMP implementation);
