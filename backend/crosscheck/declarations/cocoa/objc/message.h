#pragma once
struct objc_super {
	__unsafe_unretained id receiver;
	__unsafe_unretained Class super_class;
};
void objc_msgSendSuper(void /* struct objc_super *, SEL, … */);
