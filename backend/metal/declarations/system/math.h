#pragma once
float sqrtf(float x);
