/* A program that has nothing to do with CUDA. */
int main(void)
{
	return 0;
}
