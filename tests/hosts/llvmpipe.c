/* Draws a triangle off-screen with Mesa's llvmpipe, which compiles shaders with LLVM, and prints a pixel checksum.
 *
 *   llvmpipe FRAMES     number of times to draw it
 */
#define GL_GLEXT_PROTOTYPES
#include <EGL/egl.h>
#include <EGL/eglext.h>
#include <GL/gl.h>
#include <GL/glext.h>
#include <stdio.h>
#include <stdlib.h>

enum { SIZE = 256 };

static void require(int condition, const char *what) {
  if (!condition) {
    fprintf(stderr, "llvmpipe.c: %s\n", what);
    exit(77);
  }
}

static GLuint compile_shader(GLenum kind, const char *source) {
  GLuint shader = glCreateShader(kind);
  glShaderSource(shader, 1, &source, NULL);
  glCompileShader(shader);
  GLint compiled = 0;
  glGetShaderiv(shader, GL_COMPILE_STATUS, &compiled);
  require(compiled, "the shader does not compile");
  return shader;
}

static void make_context_current(void) {
  EGLDisplay display = eglGetPlatformDisplay(EGL_PLATFORM_SURFACELESS_MESA, EGL_DEFAULT_DISPLAY, NULL);
  require(display != EGL_NO_DISPLAY && eglInitialize(display, NULL, NULL), "no EGL display without a surface");
  require(eglBindAPI(EGL_OPENGL_API), "no OpenGL");
  EGLint attributes[] = {EGL_RENDERABLE_TYPE, EGL_OPENGL_BIT, EGL_SURFACE_TYPE, 0, EGL_NONE};
  EGLConfig config;
  EGLint count = 0;
  require(eglChooseConfig(display, attributes, &config, 1, &count) && count == 1, "no configuration");
  EGLContext context = eglCreateContext(display, config, EGL_NO_CONTEXT, NULL);
  require(context != EGL_NO_CONTEXT && eglMakeCurrent(display, EGL_NO_SURFACE, EGL_NO_SURFACE, context), "no context");
}

static void bind_framebuffer(void) {
  GLuint texture, frame;
  glGenTextures(1, &texture);
  glBindTexture(GL_TEXTURE_2D, texture);
  glTexImage2D(GL_TEXTURE_2D, 0, GL_RGBA8, SIZE, SIZE, 0, GL_RGBA, GL_UNSIGNED_BYTE, NULL);
  glGenFramebuffers(1, &frame);
  glBindFramebuffer(GL_FRAMEBUFFER, frame);
  glFramebufferTexture2D(GL_FRAMEBUFFER, GL_COLOR_ATTACHMENT0, GL_TEXTURE_2D, texture, 0);
  require(glCheckFramebufferStatus(GL_FRAMEBUFFER) == GL_FRAMEBUFFER_COMPLETE, "no frame buffer");
  glViewport(0, 0, SIZE, SIZE);
}

int main(int argc, char **argv) {
  make_context_current();
  bind_framebuffer();
  GLuint program = glCreateProgram();
  glAttachShader(program, compile_shader(GL_VERTEX_SHADER, "#version 130\nin vec2 at; out vec2 where;\n"
                                                   "void main() { where = at; gl_Position = vec4(at, 0.0, 1.0); }"));
  glAttachShader(program, compile_shader(GL_FRAGMENT_SHADER,
                                 "#version 130\nin vec2 where; out vec4 color;\n"
                                 "void main() { float sum = 0.0; for (int i = 0; i < 64; i++) sum += sin(where.x * float(i));\n"
                                 "  color = vec4(where.x > 0.0, where.y > 0.0, sum > 0.0, 1.0); }"));
  glBindAttribLocation(program, 0, "at");
  glLinkProgram(program);
  glUseProgram(program);
  static const GLfloat corners[] = {-1, -1, 1, -1, -1, 1, 1, 1};
  glVertexAttribPointer(0, 2, GL_FLOAT, GL_FALSE, 0, corners);
  glEnableVertexAttribArray(0);
  for (int frames_left = argc > 1 ? atoi(argv[1]) : 1; frames_left > 0; frames_left--) {
    glDrawArrays(GL_TRIANGLE_STRIP, 0, 4);
    glFinish();
  }
  static unsigned char pixels[SIZE * SIZE * 4];
  glReadPixels(0, 0, SIZE, SIZE, GL_RGBA, GL_UNSIGNED_BYTE, pixels);
  unsigned long sum = 0;
  for (size_t i = 0; i < sizeof pixels; i++) sum = sum * 31 + pixels[i];
  printf("%s\n%lx\n", (const char *)glGetString(GL_RENDERER), sum);
  return 0;
}
